"""The mock backend: the real engine with a scripted model, a cost model and virtual seconds. No torch."""

from .executor import MockExecutor as MockExecutor
from .executor import mock as mock
from .executor import open_mock as open_mock
from .log import Call as Call
from .log import Calls as Calls
from .reply import Piece as Piece
from .reply import Reply as Reply
from .reply import cut_off as cut_off
from .reply import fails as fails
from .reply import malformed as malformed
from .reply import pieces as pieces
from .reply import stalls as stalls
from .script import Rule as Rule
from .worker import CostModel as CostModel
