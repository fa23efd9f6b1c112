"""Projects and their members: members see the project's jobs, its owners say who is a member."""

import re

from django.contrib.auth.models import AbstractBaseUser, User
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from orchestrator.exceptions import Conflict, Forbidden, Impossible, Malformed, NotFound, Sentence
from orchestrator.models import Job, MemberRole, Project, ProjectMember
from orchestrator.people import audit, rights

MOST_MEMBERS = 500
MOST_OWNED = 200  # projects that one person made or owns
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


def visible_to(user: AbstractBaseUser) -> QuerySet[Project]:
    """The projects that a person is a member of; operators of every pool see all."""
    if rights.hosts(user):
        return Project.objects.all()
    return Project.objects.filter(memberships__user=user.pk)


def find(user: AbstractBaseUser, name: str) -> Project:
    """The project of this name.

    Raises:
        NotFound: no such project, or this person is not a member.
    """
    found = visible_to(user).filter(pk=name).first()
    if found is None:
        raise NotFound(
            Sentence("There is no project {name!r}, or you are not a member of it.", name=name[:64])
        )
    return found


def manages(user: AbstractBaseUser, project: Project) -> bool:
    """Whether a person may change a project and its members."""
    owns = project.memberships.filter(user=user.pk, role=MemberRole.OWNER)
    return rights.hosts(user) or owns.exists()


def check_manage(user: AbstractBaseUser, project: Project) -> None:
    """Check that a person may change a project.

    Raises:
        Forbidden: they may only look at it.
    """
    if not manages(user, project):
        raise Forbidden(
            Sentence("Only owners of project {project} may do this. Ask one of them.", project=project)
        )


def check_use(owner: AbstractBaseUser, name: str) -> None:
    """Check that jobs of this person may be in a project.

    Raises:
        Impossible: no project has this name, or they are not a member.
    """
    if not ProjectMember.objects.filter(project=name, user=owner.pk).exists():
        sentence = Sentence(
            "{owner} is in no project {name!r}. Create it on the page Projects, or ask one of its owners to be made a member.",
            owner=owner.get_username(),
            name=name[:64],
        )
        raise Impossible(sentence, fields={"project": [sentence]})


def create(by: User, name: str, description: str = "", *, address: str = "") -> Project:
    """Create a project; its creator is its first owner.

    Raises:
        Malformed: the name breaks a rule.
        Conflict: the name is taken, or this person owns too many projects.
    """
    if not _NAME.fullmatch(name):
        sentence = "give a name of up to 64 small letters, digits, - and _, such as paper-x"
        raise Malformed(Sentence("name: {sentence}.", sentence=sentence), fields={"name": [sentence]})
    if ProjectMember.objects.filter(user=by, role=MemberRole.OWNER).count() >= MOST_OWNED:
        raise Conflict(
            Sentence(
                "You own {most_owned} projects. Delete one that you no longer need.", most_owned=MOST_OWNED
            )
        )
    try:
        with transaction.atomic():
            project = Project.objects.create(name=name, description=description)
            ProjectMember.objects.create(project=project, user=by, role=MemberRole.OWNER)
            audit.record(by, "project.made", f"project {name}", f"Made project {name}.", address=address)
    except IntegrityError:
        sentence = Sentence("There is already a project {name}. Choose another name.", name=name)
        raise Conflict(sentence, fields={"name": [sentence]}) from None
    return project


def describe(by: AbstractBaseUser, project: Project, description: str, *, address: str = "") -> None:
    """Change what a project says about itself.

    Raises:
        Forbidden: not one of its owners.
    """
    check_manage(by, project)
    project.description = description
    project.save(update_fields=["description"])
    audit.record(by, "project.changed", f"project {project}", "Changed the description.", address=address)


def remove(by: AbstractBaseUser, project: Project, *, address: str = "") -> None:
    """Delete a project that no job has any longer.

    Raises:
        Forbidden: not one of its owners.
        Conflict: jobs have it.
    """
    check_manage(by, project)
    if count := Job.objects.filter(project=project).count():
        raise Conflict(
            Sentence(
                "{jobs} project {project}. Move them to another project, or to none, first.",
                jobs=Sentence("{count:,} job has" if count == 1 else "{count:,} jobs have", count=count),
                project=project,
            )
        )
    with transaction.atomic():
        audit.record(by, "project.removed", f"project {project}", "Deleted it.", address=address)
        project.delete()


def set_member(
    by: AbstractBaseUser, project: Project, username: str, role: MemberRole, *, address: str = ""
) -> ProjectMember:
    """Make somebody a member or an owner of a project; repeating this is harmless.

    Raises:
        Forbidden: not one of its owners.
        Impossible: there is no such account.
        Conflict: it would be left without an owner, or is full.
    """
    check_manage(by, project)
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        sentence = Sentence("There is no account {username!r}.", username=username[:150])
        raise Impossible(sentence, fields={"username": [sentence]})
    with transaction.atomic():
        if role != MemberRole.OWNER:
            _keep_an_owner(project, user)
        if project.memberships.exclude(user=user).count() >= MOST_MEMBERS:
            raise Conflict(
                Sentence(
                    "Project {project} has {most_members} members, which is the limit.",
                    project=project,
                    most_members=MOST_MEMBERS,
                )
            )
        member, _ = ProjectMember.objects.update_or_create(
            project=project, user=user, defaults={"role": role}
        )
        text = f"Made {username} {role} of {project}."
        audit.record(by, "project.member", f"project {project}", text, address=address)
    return member


def drop_member(by: AbstractBaseUser, project: Project, username: str, *, address: str = "") -> None:
    """Take somebody out of a project; everybody may leave one. Their jobs stay in it, as a record.

    Raises:
        Forbidden: not one of its owners.
        Conflict: it would be left without an owner.
    """
    if username != by.get_username():
        check_manage(by, project)
    member = project.memberships.filter(user__username=username).select_related("user").first()
    if member is None:
        return
    with transaction.atomic():
        _keep_an_owner(project, member.user)
        member.delete()
        text = f"Took {username} out of {project}."
        audit.record(by, "project.member", f"project {project}", text, address=address)


def _keep_an_owner(project: Project, user: AbstractBaseUser) -> None:
    """Refuse to take its last owner from a project."""
    owners = Project.objects.select_for_update().get(pk=project.pk).memberships.filter(role=MemberRole.OWNER)
    left = owners.exclude(user=user.pk)
    if owners.filter(user=user.pk).exists() and not left.exists():
        raise Conflict(
            Sentence(
                "{user} is the only owner of {project}. Make somebody else owner first.",
                user=user.get_username(),
                project=project,
            )
        )
