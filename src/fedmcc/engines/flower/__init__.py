"""Flower as a transport: it carries orders to sites and replies back; all else is ours."""

from flwr.serverapp import Grid

from fedmcc.engines.flower.crew import Charter, Sites
from fedmcc.engines.flower.roster import Common, Roster, Terms

__all__ = ["Charter", "Common", "Grid", "Roster", "Sites", "Terms"]
