"""The mock backend: the real engine with a scripted model, a cost model and virtual seconds. No torch."""

from .calls import Call as Call
from .calls import Calls as Calls
from .calls import Piece as Piece
from .calls import Reply as Reply
from .calls import cut_off as cut_off
from .calls import fails as fails
from .calls import malformed as malformed
from .calls import pieces as pieces
from .calls import stalls as stalls
from .executor import MockExecutor as MockExecutor
from .executor import mock as mock
from .executor import open_mock as open_mock
from .script import Rule as Rule
from .worker import CostModel as CostModel
