//! What a test puts behind some paths and ports: a folder, a program, a server of its own.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use bytes::Bytes;

use super::below;

/// What answers paths that begin in some way.
#[derive(Clone, Debug)]
pub enum Share {
    /// The files of a folder. A path that ends in `/` is the file `index.html` there.
    Folder(PathBuf),
    /// A program that is started for each request as RFC 3875 (CGI) has it, with more variables.
    Program {
        /// The program.
        path: PathBuf,
        /// Variables beyond those of the request.
        variables: Vec<(String, String)>,
    },
    /// A server behind a Unix socket, for one of the ports on which streams come back otherwise. The path is
    /// the port.
    Socket(PathBuf),
}

/// Everything that was put there.
#[derive(Default)]
pub(super) struct Shares(Mutex<Vec<(String, Share)>>);

/// A request, as a share gets it.
pub(super) struct Asked {
    pub(super) method: String,
    /// Without the prefix.
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
}

/// What a share answers.
pub(super) struct Answered {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Shares {
    pub(super) fn add(&self, prefix: &str, share: Share) {
        self.0.lock().unwrap().push((prefix.to_owned(), share));
    }

    /// What answers a path, and the rest of that.
    pub(super) fn at(&self, path: &str) -> Option<(Share, String)> {
        let shares = self.0.lock().unwrap();
        shares.iter().find_map(|(prefix, share)| {
            let rest = path.strip_prefix(prefix.as_str())?;
            Some((share.clone(), rest.to_owned()))
        })
    }

    /// The server behind a port.
    pub(super) fn behind(&self, port: u16) -> Option<PathBuf> {
        match self.at(&port.to_string()) {
            Some((Share::Socket(path), _)) => Some(path),
            _ => None,
        }
    }
}

impl Share {
    /// Answers. Blocks.
    pub(super) fn answer(&self, asked: &Asked) -> Answered {
        match self {
            Share::Folder(folder) => file(folder, &asked.path),
            Share::Program { path, variables } => program(path, variables, asked),
            Share::Socket(_) => refusal(),
        }
    }
}

fn refusal() -> Answered {
    Answered { status: 404, headers: vec![], body: b"not here\n".to_vec() }
}

fn file(folder: &Path, path: &str) -> Answered {
    let name =
        if path.ends_with('/') || path.is_empty() { format!("{path}index.html") } else { path.to_owned() };
    let Some(body) = below(folder, &name).and_then(|path| std::fs::read(path).ok()) else { return refusal() };
    let kind = match name.rsplit('.').next() {
        Some("html") => "text/html",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    Answered { status: 200, headers: vec![("content-type".to_owned(), kind.to_owned())], body }
}

fn program(path: &Path, variables: &[(String, String)], asked: &Asked) -> Answered {
    let header = |name: &str| {
        let found = asked.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let mut command = Command::new(path);
    command.envs(variables.iter().cloned());
    command.env("REQUEST_METHOD", &asked.method).env("PATH_INFO", &asked.path);
    command.env("QUERY_STRING", &asked.query).env("CONTENT_TYPE", header("content-type"));
    command.env("CONTENT_LENGTH", asked.body.len().to_string());
    command.env("HTTP_AUTHORIZATION", header("authorization")); // as a server does that leaves it to the program
    command.env("HTTP_CONTENT_ENCODING", header("content-encoding"));
    command.env("HTTP_GIT_PROTOCOL", header("git-protocol"));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (mut stdin, body) = (child.stdin.take().unwrap(), asked.body.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&body));
    let output = child.wait_with_output().unwrap().stdout;
    let _ = writer.join(); // it may not have wanted it all
    parse(&output).unwrap_or_else(refusal)
}

/// Header fields, an empty line, and the body.
fn parse(output: &[u8]) -> Option<Answered> {
    let end = output.windows(4).position(|part| part == b"\r\n\r\n")?;
    let head = str::from_utf8(&output[..end]).ok()?;
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut headers: Vec<_> = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let status = headers.iter().position(|(name, _)| name.eq_ignore_ascii_case("status"));
    let status = status.map_or("200".to_owned(), |at| headers.remove(at).1);
    let status = status.split(' ').next()?.parse().ok()?;
    Some(Answered { status, headers, body: output[end + 4..].to_vec() })
}
