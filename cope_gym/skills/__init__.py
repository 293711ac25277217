"""Skills: what one episode teaches, as text that conditions another. No torch here."""

from cope_gym.skills.audit import AuditResult, audit
from cope_gym.skills.skill import Skill, SkillError, parse_skill

__all__ = ["AuditResult", "Skill", "SkillError", "audit", "parse_skill"]
