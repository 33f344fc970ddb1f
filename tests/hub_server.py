"""A Hub of one machine for tests: what huggingface_hub says over HTTP when it publishes a model, and answers to it.

Repositories, commits, tags and large files are kept in memory. `fail` makes the next requests of a kind go wrong.
"""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import yaml
from huggingface_hub.utils.sha import git_hash

TOKEN = "hf_of_the_tests_alone"
READ_ONLY = "hf_that_may_only_read"


class HubServer:
    """`with HubServer() as hub:` serves at `hub.address`."""

    def __init__(self):
        self.repos: dict[str, dict] = {}  # name: private, commits (oid, message, files), tags
        self.objects: dict[str, bytes] = {}  # large files, by SHA-256
        self.requests: list[tuple[str, str]] = []  # method and path, as they came
        self.failures: list[tuple[str, str, int | None]] = []

    def __enter__(self):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = read_chunks(self.rfile)
                path = unquote(urlsplit(self.path).path)
                hub.requests.append((self.command, path))
                failure = hub.next_failure(self.command, path)
                if failure and failure[2] is None:  # the line goes dead
                    self.close_connection = True
                    self.connection.close()
                    return
                status, said = (failure[2], {"error": "asked to fail"}) if failure else hub.reply(self, path, body)
                data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                if status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_HEAD = answer

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def fail(self, method: str, path: str, status: int | None, times: int = 1) -> None:
        """The next requests whose path has `path` in it are answered with `status`, or not at all where that is None."""
        self.failures += [(method, path, status)] * times

    def next_failure(self, method: str, path: str):
        found = next((x for x in self.failures if x[0] == method and x[1] in path), None)
        if found:
            self.failures.remove(found)
        return found

    def count(self, method: str, path: str) -> int:
        return sum(said == method and path in where for said, where in self.requests)

    def add(self, name: str, private: bool = True, files: dict[str, bytes] | None = None) -> dict:
        """A repository, with the commit that the Hub makes in each."""
        attributes = {".gitattributes": ("regular", b"*.safetensors filter=lfs\n")}
        repo = self.repos[name] = {"private": private, "commits": [], "tags": {}}
        self.commit(repo, "initial commit", attributes)
        if files:
            self.commit(repo, "something", {path: ("regular", data) for path, data in files.items()})
        return repo

    def commit(self, repo: dict, message: str, files: dict, gone: tuple = ()) -> str:
        before = repo["commits"][-1]["files"] if repo["commits"] else {}
        after = {path: x for path, x in (before | files).items() if path not in gone}
        oid = hashlib.sha1(f"{len(repo['commits'])} {message} {sorted(after)}".encode()).hexdigest()
        repo["commits"].append({"oid": oid, "message": message, "files": after})
        return oid

    def content(self, name: str) -> dict[str, bytes]:
        """The files of the newest commit, large ones too."""
        files = self.repos[name]["commits"][-1]["files"]
        return {path: data if kind == "regular" else self.objects[data] for path, (kind, data) in files.items()}

    def reply(self, request, path: str, body: bytes) -> tuple[int, dict | str]:
        if path.startswith("/lfs/"):
            self.objects[path.removeprefix("/lfs/")] = body
            return (
                (200, {})
                if hashlib.sha256(body).hexdigest() == path.removeprefix("/lfs/")
                else (400, {"error": "digest"})
            )
        if path == "/api/validate-yaml":
            errors = errors_of(json.loads(body)["content"])
            return (400 if errors else 200), {"errors": [{"message": x} for x in errors], "warnings": []}
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in (TOKEN, READ_ONLY):
            return 401, {"error": "Invalid credentials"}
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": "tester", "auth": {"type": "access_token"}}
        if token == READ_ONLY and request.command != "GET":
            return 403, {"error": "this token may only read"}
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return 200, self.batch(json.loads(body))
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(\w+)(?:/(.+))?)?", path)
        if not found or found[1] not in self.repos:
            return 404, {"error": "Repository not found"}
        repo, what, revision = self.repos[found[1]], found[2], found[3]
        if what in (None, "revision"):
            return 200, self.info(found[1])
        if what == "refs":
            head = repo["commits"][-1]["oid"]
            tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": oid} for tag, oid in repo["tags"].items()]
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": head}
            return 200, {"branches": [main], "tags": tags, "converts": []}
        if what == "preupload":
            return 200, {"files": [self.mode(repo, file) for file in json.loads(body)["files"]]}
        if what == "commit":
            return self.receive(found[1], repo, body)
        if what == "tag":
            tag = json.loads(body)["tag"]
            if tag in repo["tags"]:
                return 409, {"error": "tag exists"}
            repo["tags"][tag] = revision if re.fullmatch("[0-9a-f]{40}", revision) else repo["commits"][-1]["oid"]
            return 200, {}
        return 404, {"error": f"no such thing: {path}"}

    def create(self, wanted: dict) -> tuple[int, dict]:
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.repos:
            return 409, {"error": "You already created this model repo", "url": f"{self.address}/{name}"}
        private = wanted.get("private", False) or wanted.get("visibility") == "private"
        self.add(name, private=private)
        return 200, {"url": f"{self.address}/{name}", "name": name}

    def info(self, name: str) -> dict:
        repo = self.repos[name]
        siblings = []
        for path, (kind, data) in repo["commits"][-1]["files"].items():
            if kind == "regular":
                siblings.append({"rfilename": path, "size": len(data), "blobId": git_hash(data)})
            else:
                large = {"sha256": data, "size": len(self.objects[data]), "pointerSize": 134}
                siblings.append({"rfilename": path, "size": large["size"], "blobId": "0" * 40, "lfs": large})
        head = repo["commits"][-1]["oid"]
        return {"id": name, "modelId": name, "sha": head, "private": repo["private"], "siblings": siblings, "tags": []}

    def mode(self, repo: dict, file: dict) -> dict:
        large = file["path"].endswith((".safetensors", ".png"))
        kind, data = repo["commits"][-1]["files"].get(file["path"], (None, None))
        oid = {None: None, "regular": git_hash(data) if kind == "regular" else None, "lfs": data}[kind]
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid}

    def batch(self, wanted: dict) -> dict:
        """A large file that is there already needs no action."""
        objects = []
        for file in wanted["objects"]:
            actions = {"actions": {"upload": {"href": f"{self.address}/lfs/{file['oid']}"}}}
            objects.append(file | ({} if file["oid"] in self.objects else actions))
        return {"transfer": "basic", "objects": objects}

    def receive(self, name: str, repo: dict, body: bytes) -> tuple[int, dict]:
        header, files, gone = {}, {}, []
        for item in map(json.loads, body.splitlines()):
            key, value = item["key"], item["value"]
            if key == "header":
                header = value
            elif key == "file":
                files[value["path"]] = ("regular", base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if value["oid"] not in self.objects:
                    return 400, {"error": f"{value['path']} was not uploaded"}
                files[value["path"]] = ("lfs", value["oid"])
            elif key == "deletedFile":
                gone.append(value["path"])
        if header.get("parentCommit", repo["commits"][-1]["oid"]) != repo["commits"][-1]["oid"]:
            return 412, {"error": "the branch has moved"}
        oid = self.commit(repo, header["summary"], files, tuple(gone))
        return 200, {"commitUrl": f"{self.address}/{name}/commit/{oid}", "commitOid": oid}


def errors_of(card: str) -> list[str]:
    """What the Hub says of a card's metadata: fields it knows must have values that it knows."""
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    head = yaml.safe_load(found[1]) if found else {}
    errors = [] if isinstance(head.get("license"), str) else ['"license" must be a string']
    errors += (
        [] if all(re.fullmatch("[a-z]{2,3}", x) for x in head.get("language", [])) else ['"language" must be ISO 639']
    )
    for model in head.get("model-index", []):
        for i, result in enumerate(model["results"]):
            for part, names in (("task", ["type"]), ("dataset", ["type", "name"])):
                errors += [
                    f"model-index: results[{i}].{part}.{name} is missing" for name in names if name not in result[part]
                ]
            wrong = [metric for metric in result["metrics"] if not {"type", "value"} <= metric.keys()]
            errors += [f"model-index: a metric needs type and value: {metric}" for metric in wrong]
    return errors


def read_chunks(file) -> bytes:
    data = b""
    while size := int(file.readline(), 16):
        data += file.read(size)
        file.readline()
    file.readline()
    return data
