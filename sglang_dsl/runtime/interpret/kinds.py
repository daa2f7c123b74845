"""What each kind of node does in a run: the whole interpreter on one page."""

from __future__ import annotations

from ...ir.nodes import (
    Break,
    Fork,
    Gen,
    Input,
    Join,
    Loop,
    Map,
    Return,
    RoleBegin,
    RoleEnd,
    Select,
    Switch,
    Text,
    Tool,
)
from .branches import begin_fork, begin_join, check_fork, check_join
from .calls import begin_gen, begin_select, check_gen, check_select
from .machine import Kinds
from .regions import begin_loop, begin_map, begin_switch, check_region
from .tools import begin_tool, check_tool
from .words import begin_input, begin_return, begin_role, begin_text, check_input, check_role, check_text, refuse_break

KINDS = Kinds(
    check={
        Text: check_text,
        RoleBegin: check_role,
        Gen: check_gen,
        Select: check_select,
        Fork: check_fork,
        Join: check_join,
        Tool: check_tool,
        Switch: check_region,
        Loop: check_region,
        Map: check_region,
        Input: check_input,
        Break: refuse_break,
    },
    begin={
        Text: begin_text,
        RoleBegin: begin_role,
        RoleEnd: begin_role,
        Gen: begin_gen,
        Select: begin_select,
        Fork: begin_fork,
        Join: begin_join,
        Tool: begin_tool,
        Switch: begin_switch,
        Loop: begin_loop,
        Map: begin_map,
        Input: begin_input,
        Return: begin_return,
    },
)
