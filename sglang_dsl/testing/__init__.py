"""Testing prompt programs without a model: the mock backend and what goes with it."""

from ..runtime.backends.mock import Call as Call
from ..runtime.backends.mock import Calls as Calls
from ..runtime.backends.mock import CostModel as CostModel
from ..runtime.backends.mock import MockExecutor as MockExecutor
from ..runtime.backends.mock import Piece as Piece
from ..runtime.backends.mock import Reply as Reply
from ..runtime.backends.mock import Rule as Rule
from ..runtime.backends.mock import cut_off as cut_off
from ..runtime.backends.mock import fails as fails
from ..runtime.backends.mock import malformed as malformed
from ..runtime.backends.mock import mock as mock
from ..runtime.backends.mock import pieces as pieces
from ..runtime.backends.mock import stalls as stalls
from .cassettes import cassette as cassette
from .faults import Fault as Fault
from .faults import with_faults as with_faults
from .golden import check_golden as check_golden
from .golden import compare as compare
