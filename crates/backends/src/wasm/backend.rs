//! The backend: what WebAssembly enforces here, and which programs it runs.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cofferdam_core::backend::{Backend, BackendError, Boxed, Fit, Session};
use cofferdam_core::capability::{Capability, Gap, Offers};
use cofferdam_core::files::{Files, Workspace};
use cofferdam_core::grant::Grant;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::Outlet;
use cofferdam_core::request::{Lang, Origin, Program, Request, Script};
use cofferdam_sys::beneath::Folder as Beneath;

use super::fit::{self, Misfit, WayOut};
use super::jail;
use super::session::{Before, WasmSession, is_module};
use super::setup::SetupError;
use super::templates::Templates;
use crate::container::Container;

/// Runs programs in WebAssembly.
pub struct Wasm {
    /// Whose jails the workers are in.
    container: Container,
    /// Whether there are ways out for its programs.
    reaches_out: bool,
    holds_credentials: bool,
    own: WorkerProgram,
    /// Where what was prepared is.
    prepared: PathBuf,
    templates: OnceLock<Result<Arc<Templates>, String>>,
    offers: OnceLock<Offers>,
}

/// The program that is a worker if it is told so: whoever has this library in it, and calls
/// [`worker::main`](super::worker::main) then.
#[derive(Clone, Debug)]
pub struct WorkerProgram {
    /// Its path.
    pub path: PathBuf,
    /// The arguments that tell it so.
    pub args: Vec<CString>,
}

/// What brings a Python.
const SETUP: &str = "run `cofferdam setup python` once (a minute or two; or `cofferdam run --setup`)";

/// What mends a folder that is there and can't be used.
const UNUSABLE: &str = "give that to yourself alone and make it readable (chown, chmod 700), or set COFFERDAM_DATA to \
                        another folder and run `cofferdam setup python`";

impl Wasm {
    /// A backend whose workers are this program, in the jails of a container. `prepared` is the folder of what
    /// was prepared, which need not be there.
    #[must_use]
    pub fn new(container: Container, own: WorkerProgram, prepared: PathBuf) -> Self {
        let (templates, offers) = (OnceLock::new(), OnceLock::new());
        Wasm { container, reaches_out: false, holds_credentials: false, own, prepared, templates, offers }
    }

    /// The same where the engine has ways out for sandboxes: then a program can ask for connections.
    #[must_use]
    pub fn with_outlets(self) -> Self {
        Wasm { reaches_out: true, offers: OnceLock::new(), ..self }
    }

    /// The same where the engine has credentials minted: what leaves a program is always judged outside.
    #[must_use]
    pub fn with_credentials(self) -> Self {
        Wasm { holds_credentials: true, offers: OnceLock::new(), ..self }
    }

    /// What it has of a way out, as far as the engine has ways out and credentials.
    fn of_a_way_out(&self) -> impl Iterator<Item = Capability> {
        let (reaches_out, holds_credentials) = (self.reaches_out, self.holds_credentials);
        let credentials = (reaches_out && holds_credentials).then_some(Capability::Credentials);
        OF_A_WAY_OUT.into_iter().filter(move |_| reaches_out).chain(credentials)
    }

    /// Why no Python is ready, and what to do; none if one is.
    #[must_use]
    pub fn no_python(&self) -> Option<(String, String)> {
        let nothing = |why: &str| Some((why.to_owned(), SETUP.to_owned()));
        if self.templates.get().is_none() && matches!(self.prepared.try_exists(), Ok(false)) {
            return nothing("no Python is prepared for it"); // looking makes no folder
        }
        match self.templates() {
            Ok(templates) if !templates.is_empty() => None,
            Ok(_) => nothing("no Python is prepared for it, or not for this version and this processor"),
            Err(why) => Some((format!("what was prepared can't be used: {why}"), UNUSABLE.to_owned())),
        }
    }

    /// Whether it could run a request if only a Python were ready.
    #[must_use]
    pub fn lacks_python_for(&self, request: &Request, files: &Files) -> bool {
        let Program::Script(script) = &request.program else { return false };
        let python = script.lang == Lang::Python && files.python.is_none();
        python && self.no_python().is_some() && fit::deed(&script.source).is_none()
    }

    /// The modules that a script of Python imports and that the template it runs in, with so much memory, has not
    /// loaded: it waits for them in each run.
    #[must_use]
    pub fn waits_for(&self, program: &Program, files: &Files, memory_bytes: u64) -> BTreeSet<String> {
        match (program, self.templates()) {
            (Program::Script(script), Ok(templates)) if script.lang == Lang::Python => {
                templates.unloaded(&source(script, files), memory_bytes)
            }
            _ => BTreeSet::new(),
        }
    }

    /// The names of the templates that are ready.
    #[must_use]
    pub fn ready(&self) -> Vec<&str> {
        self.templates().as_ref().map_or_else(|_| vec![], |templates| templates.all_names().collect())
    }

    fn templates(&self) -> &Result<Arc<Templates>, String> {
        self.templates.get_or_init(|| {
            let words = |error: SetupError| {
                let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
                format!("{error}{}", source.unwrap_or_default())
            };
            Templates::look(&self.prepared).map(Arc::new).map_err(words)
        })
    }

    /// Whether a script of Python runs.
    fn fit_python(&self, script: &Script, request: &Request, files: &Files) -> Fit {
        let no = |why: String| Fit::No { why, fix: Some(ELSEWHERE.to_owned()) };
        if files.python.is_some() {
            return no("it has a Python of its own, not the one that was named".to_owned());
        }
        if let Some((why, fix)) = self.no_python() {
            return Fit::NotYet { why, fix };
        }
        let templates = match self.templates() {
            Ok(templates) => templates,
            Err(why) => return no(why.clone()),
        };
        let workspace = files.workspace.as_ref().map(|workspace| workspace.host.as_path());
        let beside = |module: &str| is_beside(module, request, script, workspace);
        match fit::python(&source(script, files), templates.importable(), &beside) {
            Ok(()) => {
                let why = "it is Python that needs nothing but its own memory and files, so it makes no system \
                           call at all";
                Fit::Yes { why: why.to_owned() }
            }
            Err(Misfit { needs, way_out }) => {
                Fit::Unlikely { why: format!("the program {needs}"), fix: Some(fix(way_out)) }
            }
        }
    }
}

/// What to do about a program that WebAssembly can't run, or hardly.
const ELSEWHERE: &str = "a container runs it: --backend container --profile internal, if nobody outside controls \
                         the program or what it reads";

/// The same, by who has it.
fn fix(way_out: WayOut) -> String {
    match way_out {
        WayOut::Elsewhere => ELSEWHERE.to_owned(),
        WayOut::Module(name) => format!(
            "a module of your own is found with --workspace and the folder that it is in; a package that is Python \
             alone is added by `cofferdam setup python --template NAME --with {name}`; a container has those of the \
             host, or with --venv DIR of a virtual environment: --backend container --profile internal, if nobody outside controls the program or what it reads"
        ),
        WayOut::Loopback => "urllib, http.client, requests and a client's sockets reach the hosts that --allow names; a \
                             container has a loopback to serve on: --backend container --profile internal, if nobody \
                             outside controls the program or what it reads"
            .to_owned(),
        WayOut::Terminal => "a container has a terminal: -t --backend container --profile internal, if nobody \
                             outside controls the program or what it reads"
            .to_owned(),
    }
}

/// A script's text, as far as it is looked at.
fn source<'a>(script: &'a Script, files: &Files) -> Cow<'a, [u8]> {
    let Origin::Workspace(path) = &script.origin else { return Cow::Borrowed(&script.source) };
    let path = Path::new(OsStr::from_bytes(path.as_c_str().to_bytes()));
    let read = |workspace: &Workspace| read(&workspace.host, path);
    Cow::Owned(files.workspace.as_ref().and_then(read).unwrap_or_default())
}

/// What no program of WebAssembly has here, why, and what to do.
const OWN_GAPS: [(Capability, &str, &str); 2] = [
    (
        Capability::SeparateKernel,
        "a program makes no system call, but the worker that runs it shares the host's kernel",
        "no backend of this version has a kernel of its own: don't require it, or wait for microVMs",
    ),
    (
        Capability::Tty,
        "WebAssembly has no terminals",
        "run without -t, or in a container: --backend container --profile internal",
    ),
];

/// What it has wherever its jail can be made and the engine has ways out. It needs nothing of the host's for that: a
/// program has no socket, and asks its worker for each connection.
const OF_A_WAY_OUT: [Capability; 5] = [
    Capability::Egress,
    Capability::EgressHttp,
    Capability::EgressTcp,
    Capability::Dns,
    Capability::DenialsUnlistedPort,
];

/// What a file of a workspace begins with.
fn read(workspace: &Path, path: &Path) -> Option<Vec<u8>> {
    use std::io::Read as _;
    let file = Beneath::open(workspace).ok()?.open_file(path.to_str()?).ok()?;
    let mut source = vec![];
    file.take(fit::LOOK_BYTES as u64).read_to_end(&mut source).ok()?;
    Some(source)
}

/// Whether a module of a name lies where a script would find it: among the files of the request, or beside it
/// in the workspace.
fn is_beside(module: &str, request: &Request, script: &Script, workspace: Option<&Path>) -> bool {
    let file = format!("{module}.py");
    if request.files.iter().any(|put| put.name.as_c_str().to_bytes() == file.as_bytes()) {
        return true;
    }
    let Some(workspace) = workspace else { return false };
    let folder = match &script.origin {
        Origin::Workspace(path) => {
            let path = Path::new(OsStr::from_bytes(path.as_c_str().to_bytes()));
            workspace.join(path.parent().unwrap_or(Path::new("")))
        }
        _ => workspace.to_owned(),
    };
    folder.join(&file).exists() || folder.join(module).is_dir()
}

impl Backend for Wasm {
    fn offers(&self) -> &Offers {
        self.offers.get_or_init(|| {
            let jail = self.container.offers();
            if jail.enforced().is_empty() {
                return jail.clone();
            }
            // Its own words, where a container's would speak of something else.
            let offers = jail.clone().with(self.of_a_way_out().chain([Capability::NoAmbientAuthority]));
            OWN_GAPS
                .into_iter()
                .fold(offers, |offers, (capability, why, fix)| offers.without(capability, why, fix))
        })
    }

    fn gaps(&self, grant: &Grant) -> Vec<Gap> {
        let gaps = self.container.gaps(grant).into_iter();
        let mut gaps: Vec<_> =
            gaps.filter(|gap| !self.offers().enforced().contains(&gap.capability)).collect();
        let is_own = |gap: &Gap| OWN_GAPS.iter().any(|(capability, ..)| *capability == gap.capability);
        gaps.retain(|gap| !is_own(gap));
        gaps.extend(self.offers().missing(grant.asks()).into_iter().filter(is_own));
        gaps
    }

    fn traces(&self, run: &RunId) -> Vec<String> {
        self.container.traces(run)
    }

    fn sweep(&self, traces: &[String]) -> Result<(), BackendError> {
        self.container.sweep(traces)
    }

    fn fit(&self, request: &Request, files: &Files) -> Fit {
        match &request.program {
            Program::Script(script) if script.lang == Lang::Python => self.fit_python(script, request, files),
            Program::Script(_) => Fit::No {
                why: "it runs Python and `.wasm` files alone".to_owned(),
                fix: Some(ELSEWHERE.to_owned()),
            },
            Program::Command(argv) if is_module(argv.program()) => {
                Fit::Yes { why: "it is WebAssembly, which can do nothing that it isn't given".into() }
            }
            Program::Command(argv) => Fit::No {
                why: format!(
                    "it runs Python and `.wasm` files, and has no `{}`",
                    argv.program().to_string_lossy().escape_debug()
                ),
                fix: Some(format!("{ELSEWHERE}; a script is given as `run FILE` or as `code`")),
            },
        }
    }

    fn open<'a>(
        &'a self,
        run: &'a RunId,
        grant: Grant,
        outlet: Arc<dyn Outlet>,
    ) -> Boxed<'a, Result<Box<dyn Session>, BackendError>> {
        Box::pin(async move {
            let templates = self
                .templates()
                .clone()
                .map_err(|why| BackendError::host("use what was prepared")(std::io::Error::other(why)))?;
            let fittings = jail::fittings(self.own.path.clone(), templates.folder().path());
            let gaps = self.gaps(&grant);
            let mut jail = self.container.open_with(run, &grant, &gaps, &fittings, None).await?;
            let is_missing = |own: &Capability| gaps.iter().any(|gap| gap.capability == *own);
            let is_asked = |own: &Capability| *own != Capability::Credentials || grant.asks().contains(own);
            let own = self.of_a_way_out().filter(is_asked).chain([Capability::NoAmbientAuthority]);
            let held = own.filter(|own| self.offers().enforced().contains(own) && !is_missing(own));
            jail.enforced_mut().remove(&Capability::Tty);
            jail.enforced_mut().extend(held);
            let mut session = WasmSession {
                jail: Box::new(jail),
                templates,
                worker_args: self.own.args.clone(),
                workspace: grant.files().workspace.clone(),
                memory_bytes: grant.limits().memory_bytes,
                shown: first_names(grant.files()),
                worker: None,
                modules: Default::default(),
                before: Before::default(),
                outlet,
                cpu_at_the_end: None,
            };
            session.employ_ahead().await;
            Ok(Box::new(session) as Box<dyn Session>)
        })
    }
}

/// The first names of the paths at which something is shown, other than in folders that can be written.
fn first_names(files: &Files) -> Vec<String> {
    let first = |shown: &cofferdam_core::files::Shown| {
        let name = shown.guest.as_path().components().nth(1)?;
        Some(name.as_os_str().to_str()?.to_owned())
    };
    let mut names: Vec<_> = files.shown.iter().filter_map(first).collect();
    names.retain(|name| name != "home" && name != "tmp");
    names.sort();
    names.dedup();
    names
}
