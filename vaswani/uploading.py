"""An assembled folder on its way to the Hub: one commit and a tag, or nothing; the same call finishes what was cut short."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.sha import git_hash

from .prepared import sha256
from .publish_checks import published
from .run_config import UserError

HUBS_OWN = {".gitattributes"}  # what the Hub itself puts into a new repository
AGAIN = "nothing was published; the same command tries again, and what was uploaded is not uploaded twice"


def account() -> str:
    """The name of who is logged in.

    Raises:
        UserError: nobody is, or the Hub cannot be reached.
    """
    with hub_errors():
        return HfApi().whoami()["name"]


def upload(folder: Path, repo_id: str, tag: str, *, public: bool = False, update: bool = False, log=print) -> str:
    """Uploads an assembled folder in one commit and tags that. Returns the address of the commit.

    What the repository holds already, from an upload that was cut short before the tag, is not uploaded again.

    Args:
        public: a new repository can be seen by everybody; otherwise only by its owner.
        update: the repository may hold an earlier version; files that the new one lacks are deleted.

    Raises:
        UserError: no token, no right, no network; or the repository or the tag holds something else.
    """
    with hub_errors():
        api = HfApi()
        ModelCard.load(folder / "README.md").validate()
        there = _repository(api, repo_id, public, log)
        wanted = {path.relative_to(folder).as_posix(): path for path in published(folder)}
        same = there.keys() - HUBS_OWN == wanted.keys() and all(_is(there[name], wanted[name]) for name in wanted)
        if not same and there.keys() - HUBS_OWN and not update:
            some = ", ".join(sorted(there.keys() - HUBS_OWN)[:3])
            raise UserError(
                f"{repo_id} holds something else already ({some}, ...): choose another --repo-id, or --update to put this in its place"
            )
        tags = {ref.name: ref.target_commit for ref in api.list_repo_refs(repo_id).tags}
        head = api.repo_info(repo_id).sha
        if tag in tags and not (same and tags[tag] == head):
            raise UserError(f"{repo_id} has a tag {tag} already, of other content: choose another --tag")
        if same:
            log(f"{repo_id} holds exactly this already")
        else:
            gone = [CommitOperationDelete(name) for name in sorted(there.keys() - HUBS_OWN - wanted.keys())]
            added = [CommitOperationAdd(name, path) for name, path in wanted.items()]
            head = api.create_commit(
                repo_id, [*added, *gone], commit_message=f"{repo_id.split('/')[-1]} {tag}", parent_commit=head
            ).oid
        if tag not in tags:
            api.create_tag(repo_id, tag=tag, revision=head)
    address = f"{api.endpoint}/{repo_id}/tree/{tag}"
    log(f"published: {address}")
    return address


def _repository(api: HfApi, repo_id: str, public: bool, log) -> dict[str, RepoSibling]:
    """What the repository holds, by name; a new one is made where there is none."""
    try:
        info = api.repo_info(repo_id, files_metadata=True)
    except RepositoryNotFoundError:
        api.create_repo(repo_id, private=not public)
        log(f"made {repo_id}, {'public' if public else 'private'}")
        info = api.repo_info(repo_id, files_metadata=True)
    if not info.private and not public:
        raise UserError(
            f"{repo_id} exists and is public: add --public if everybody may see this, or make it private first"
        )
    return {sibling.rfilename: sibling for sibling in info.siblings}


def _is(there: RepoSibling, path: Path) -> bool:
    """Whether a file of the Hub is this one, by its digest."""
    if there.lfs:
        return there.lfs.sha256 == sha256(path)
    return there.blob_id == git_hash(path.read_bytes())


@contextmanager
def hub_errors() -> Iterator[None]:
    """What the Hub and the way to it can answer, as a sentence for the user."""
    try:
        yield
    except LocalTokenNotFoundError:
        raise UserError("nobody is logged in to the Hub: `hf auth login`, with a token that may write") from None
    except OfflineModeIsEnabled:
        raise UserError(f"HF_HUB_OFFLINE is set, so the Hub is not asked: unset it; {AGAIN}") from None
    except HFValidationError as error:
        raise UserError(f"--repo-id must be ORG/NAME: {error}") from None
    except HfHubHTTPError as error:
        raise UserError(_answer(error)) from None
    except httpx2.HTTPError as error:
        raise UserError(f"the Hub cannot be reached ({_line(error)}): {AGAIN}") from None
    except RuntimeError as error:  # an upload of weights; its cause is one of the above, or said by the library for Xet
        if isinstance(error.__cause__, HfHubHTTPError):
            raise UserError(_answer(error.__cause__)) from None
        raise UserError(f"the upload failed ({_line(error.__cause__ or error)}): {AGAIN}") from None
    except ValueError as error:
        raise UserError(f"the Hub does not accept this ({_line(error)}); nothing was published") from None


def _answer(error: HfHubHTTPError) -> str:
    status = error.response.status_code if error.response is not None else None
    if status == 401:
        return f"the Hub does not know this token ({_line(error)}): `hf auth login` with another; nothing was published"
    if status == 403:
        return f"this token may not write there ({_line(error)}): `hf auth login` with one that may, or another --repo-id; nothing was published"
    if status == 412:
        return f"the repository has changed meanwhile: {AGAIN}"
    return f"the Hub answered {status} ({_line(error)}): {AGAIN}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
