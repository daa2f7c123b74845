"""Testing prompt programs without a model: the mock backend and what goes with it."""

from ..runtime.backends.mock import MockExecutor as MockExecutor
from ..runtime.backends.mock import mock as mock
from ..runtime.backends.mock.calls import Call as Call
from ..runtime.backends.mock.calls import Calls as Calls
from ..runtime.backends.mock.calls import Piece as Piece
from ..runtime.backends.mock.calls import Reply as Reply
from ..runtime.backends.mock.calls import cut_off as cut_off
from ..runtime.backends.mock.calls import fails as fails
from ..runtime.backends.mock.calls import malformed as malformed
from ..runtime.backends.mock.calls import pieces as pieces
from ..runtime.backends.mock.calls import stalls as stalls
from ..runtime.backends.mock.script import Rule as Rule
from ..runtime.backends.mock.worker import CostModel as CostModel
from .cassettes import cassette as cassette
from .faults import Fault as Fault
from .faults import with_faults as with_faults
from .golden import check_golden as check_golden
from .golden import compare as compare
