//! The host's side of a worker: what is said to it, and what is believed of what it says.
//!
//! Everything that a worker says is hostile, since the program may have taken it over. It can say how its own
//! program ended; ends by deadline and lack of memory, and all counts, come from the kernel. Whatever it is
//! asked it has to answer in time; only how its program ends can take longer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cofferdam_core::backend::BackendError;
use cofferdam_core::outlet::{Dial, Outlet};
use cofferdam_guest::wire::{Frame, Inbox};
use tokio::sync::Mutex;

use super::weakened;
use super::wire::{FromWorker, ToWorker, Trap, VERSION};
use crate::channel::{Channel, PATIENCE, in_time};

/// How many connections may be on their way to a worker. It asks for the next when it has one, which it can have
/// before that is noted here; more than both asks a worker that was taken over.
const MOST_DIALLING: usize = 2;

/// A conversation with a worker. Speaking and listening are independent of each other.
pub(super) struct Talk {
    channel: Arc<Channel>,
    ear: Mutex<Ear>,
    /// How many connections that its program asked for are being made, or wait to be handed over.
    dialling: Arc<AtomicUsize>,
    /// Whether it must not have another program: one was ended by the engine, or it is gone, or it said what
    /// it can't say.
    spoiled: Arc<AtomicBool>,
}

/// What was heard so far.
#[derive(Default)]
struct Ear {
    inbox: Inbox,
    /// How many programs it has started.
    started: usize,
    /// How those of them that have ended did, in their order: one runs at a time.
    ends: Vec<End>,
    /// The way out of the one that runs.
    outlet: Option<Arc<dyn Outlet>>,
}

/// How a program ended, as its worker tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, with the part of its status that a parent sees.
    Exited(u8),
    /// The engine ended it.
    Trapped(Trap),
}

/// What came of something that it was asked.
#[derive(Debug)]
pub(super) enum Answer<T> {
    Done(T),
    /// It couldn't, and says why: untrusted text.
    Refused(String),
}

impl Talk {
    /// Takes the host's end of the socket.
    pub(super) fn new(socket: StdUnixStream) -> io::Result<Self> {
        let channel = Channel::new(socket, "WebAssembly worker")?;
        let channel = Arc::new(channel);
        Ok(Talk { channel, ear: Mutex::default(), dialling: Arc::default(), spoiled: Arc::default() })
    }

    /// Whether it must not have another program.
    pub(super) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Relaxed)
    }

    /// Lets it have no other program.
    pub(super) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    /// Tells it what to open, and doesn't wait.
    pub(super) async fn open(&self, open: &ToWorker) -> Result<(), BackendError> {
        self.say(open, &[]).await
    }

    /// Waits until it has opened that.
    pub(super) async fn opened(&self) -> Result<Answer<()>, BackendError> {
        let mut ear = self.ear.lock().await;
        match self.answer(&mut ear).await? {
            FromWorker::Ready(VERSION) => Ok(Answer::Done(())),
            FromWorker::Failed(why) => Ok(self.refused(why)),
            other => Err(self.out_of_turn(&other)),
        }
    }

    /// Has it compile a module that it reads from one descriptor, and write what comes of it to another. None if it
    /// isn't done in time, or is gone.
    pub(super) async fn compile(
        &self,
        compile: &ToWorker,
        descriptors: [BorrowedFd<'_>; 2],
        within: Duration,
    ) -> Result<Option<Answer<()>>, BackendError> {
        let mut ear = self.ear.lock().await;
        self.spoil(); // it does nothing else
        self.say(compile, &descriptors).await?;
        match tokio::time::timeout(within, self.hear(&mut ear)).await {
            Err(_) => Ok(None),
            Ok(heard) => match heard? {
                Some(FromWorker::Compiled) => Ok(Some(Answer::Done(()))),
                Some(FromWorker::Failed(why)) => Ok(Some(self.refused(why))),
                Some(other) => Err(self.out_of_turn(&other)),
                None => Ok(None),
            },
        }
    }

    /// Starts a program on three streams, with this way out; gives its number.
    pub(super) async fn run(
        &self,
        run: &ToWorker,
        streams: [BorrowedFd<'_>; 3],
        outlet: Arc<dyn Outlet>,
    ) -> Result<Answer<usize>, BackendError> {
        let mut ear = self.ear.lock().await;
        ear.outlet = Some(outlet);
        self.say(run, &streams).await?;
        match self.answer(&mut ear).await? {
            FromWorker::Started => {
                ear.started += 1;
                Ok(Answer::Done(ear.started - 1))
            }
            FromWorker::Failed(why) => Ok(self.refused(why)),
            other => Err(self.out_of_turn(&other)),
        }
    }

    /// How the program with a number ended; none if the worker is gone. Safe to drop while waiting.
    pub(super) async fn end_of(&self, program: usize) -> Result<Option<End>, BackendError> {
        let mut ear = self.ear.lock().await;
        while ear.ends.len() <= program {
            match self.hear(&mut ear).await? {
                Some(FromWorker::Exited(code)) if ear.ends.len() < ear.started => {
                    ear.ends.push(End::Exited(code.to_le_bytes()[0]));
                }
                Some(FromWorker::Trapped(trap)) if ear.ends.len() < ear.started => {
                    ear.ends.push(if weakened::calls_traps_exits() {
                        End::Exited(1)
                    } else {
                        self.spoil();
                        End::Trapped(trap)
                    });
                }
                Some(FromWorker::Dial { host, port, tls }) if ear.ends.len() < ear.started => {
                    self.dial(&ear, Dial { host, port, tls })?;
                }
                Some(other) => return Err(self.out_of_turn(&other)),
                None => {
                    self.spoil();
                    return Ok(None);
                }
            }
        }
        Ok(ear.ends.get(program).copied())
    }

    /// Makes a connection for its program, and says so: by itself, since whoever listens may stop.
    fn dial(&self, ear: &Ear, dial: Dial) -> Result<(), BackendError> {
        let Some(outlet) = ear.outlet.clone() else { return Ok(()) };
        if self.dialling.fetch_add(1, Ordering::Relaxed) >= MOST_DIALLING {
            self.spoil();
            return Err(BackendError::Wire("several connections at once".to_owned()));
        }
        let (channel, dialling) = (Arc::clone(&self.channel), Arc::clone(&self.dialling));
        let spoiled = Arc::clone(&self.spoiled);
        tokio::spawn(async move {
            let connection = connect(&*outlet, dial).await;
            drop(outlet);
            let handed_over = match &connection {
                Some(stream) => in_time(channel.write(&ToWorker::Dialled.encode(), &[stream.as_fd()])).await,
                None => in_time(channel.write(&ToWorker::NotDialled.encode(), &[])).await,
            };
            // Whoever asked is gone, or doesn't take what it asked for.
            spoiled.fetch_or(handed_over.is_err(), Ordering::Relaxed);
            dialling.fetch_sub(1, Ordering::Relaxed);
        });
        Ok(())
    }

    /// Has it drop everything of the last program.
    pub(super) async fn renew(&self) -> Result<(), BackendError> {
        let mut ear = self.ear.lock().await;
        self.say(&ToWorker::Renew, &[]).await?;
        match self.answer(&mut ear).await? {
            FromWorker::Clean => Ok(()),
            other => Err(self.out_of_turn(&other)),
        }
    }

    fn refused<T>(&self, why: String) -> Answer<T> {
        self.spoil();
        Answer::Refused(why)
    }

    /// What it answers, if it does in time.
    async fn answer(&self, ear: &mut Ear) -> Result<FromWorker, BackendError> {
        let heard = in_time(self.hear(ear)).await.inspect_err(|_| self.spoil())?;
        heard.ok_or_else(|| {
            self.spoil();
            BackendError::Gone
        })
    }

    /// The next thing that it says; none if it is gone. Safe to drop while waiting.
    async fn hear(&self, ear: &mut Ear) -> Result<Option<FromWorker>, BackendError> {
        loop {
            let heard = ear.inbox.take().map_err(|bad| {
                self.spoil();
                BackendError::Wire(bad.to_string())
            })?;
            if heard.is_some() {
                return Ok(heard);
            }
            match self.channel.read().await? {
                Some(bytes) => ear.inbox.push(&bytes),
                None => return Ok(None),
            }
        }
    }

    fn out_of_turn(&self, said: &FromWorker) -> BackendError {
        self.spoil();
        BackendError::Wire(format!("{said:?}"))
    }

    async fn say(&self, message: &ToWorker, fds: &[BorrowedFd<'_>]) -> Result<(), BackendError> {
        in_time(self.channel.write(&message.encode(), fds)).await.inspect_err(|_| self.spoil())
    }
}

/// A program's end of a new connection to its way out; none where nothing goes out.
async fn connect(outlet: &dyn Outlet, dial: Dial) -> Option<StdUnixStream> {
    let (theirs, ours) = StdUnixStream::pair().ok()?;
    let connected = tokio::time::timeout(PATIENCE, outlet.connect(dial, ours.into())).await;
    connected.ok()?.ok().map(|()| theirs)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use cofferdam_core::outlet::Closed;

    use super::super::wire::Kind;
    use super::*;

    fn run() -> ToWorker {
        ToWorker::Run { script: None, argv: vec![c"a".into()], envp: vec![], seed: [0; 32] }
    }

    /// A conversation with somebody who says these things, whatever is asked.
    async fn with(said: &[FromWorker]) -> (Talk, StdUnixStream) {
        let (ours, mut theirs) = StdUnixStream::pair().unwrap();
        for message in said {
            theirs.write_all(&message.encode()).unwrap();
        }
        (Talk::new(ours).unwrap(), theirs)
    }

    async fn start(talk: &Talk) -> Result<Answer<usize>, BackendError> {
        let null = std::fs::File::open("/dev/null").unwrap();
        talk.run(&run(), [null.as_fd(); 3], Arc::new(Closed)).await
    }

    #[tokio::test]
    async fn an_end_is_kept_for_whoever_asks() {
        let said = [FromWorker::Started, FromWorker::Exited(256 + 3), FromWorker::Started];
        let (talk, mut theirs) = with(&said).await;
        assert!(matches!(start(&talk).await, Ok(Answer::Done(0))));
        assert_eq!(talk.end_of(0).await.unwrap(), Some(End::Exited(3)));
        assert!(matches!(start(&talk).await, Ok(Answer::Done(1))));
        theirs.write_all(&FromWorker::Trapped(Trap::Stack).encode()).unwrap();
        assert!(!talk.is_spoiled());
        assert_eq!(talk.end_of(1).await.unwrap(), Some(End::Trapped(Trap::Stack)));
        assert!(talk.is_spoiled(), "who was ended by the engine has no other program");
        assert_eq!(talk.end_of(0).await.unwrap(), Some(End::Exited(3)));
    }

    #[tokio::test]
    async fn what_a_worker_cannot_say_spoils_it() {
        for said in [
            FromWorker::Exited(0), // of a program that it wasn't given
            FromWorker::Clean,
            FromWorker::Ready(VERSION),
            FromWorker::Trapped(Trap::Other),
        ] {
            let (talk, _theirs) = with(std::slice::from_ref(&said)).await;
            assert!(matches!(start(&talk).await, Err(BackendError::Wire(_))), "{said:?}");
            assert!(talk.is_spoiled(), "{said:?}");
            let (talk, _theirs) = with(&[FromWorker::Started, FromWorker::Exited(0), said.clone()]).await;
            start(&talk).await.unwrap();
            talk.end_of(0).await.unwrap();
            let renewed = talk.renew().await;
            assert!(renewed.is_err() || said == FromWorker::Clean, "{said:?}");
        }
        for version in [VERSION + 1, 0] {
            let (talk, _theirs) = with(&[FromWorker::Ready(version)]).await;
            assert!(matches!(talk.opened().await, Err(BackendError::Wire(_))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_compiler_is_waited_for_so_long_and_has_done_nothing_if_it_goes() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let within = Duration::from_secs(60);
        let compile = async |said: &[FromWorker], gone: bool| {
            let (talk, theirs) = with(said).await;
            if gone {
                theirs.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let done = talk.compile(&ToWorker::Compile { kind: Kind::Core }, [null.as_fd(); 2], within).await;
            assert!(talk.is_spoiled(), "it has nothing else to do");
            drop(theirs);
            done
        };
        assert!(matches!(compile(&[], false).await, Ok(None)));
        assert!(matches!(compile(&[], true).await, Ok(None)));
        assert!(matches!(compile(&[FromWorker::Compiled], false).await, Ok(Some(Answer::Done(())))));
        let failed = compile(&[FromWorker::Failed("no".into())], false).await;
        assert!(matches!(failed, Ok(Some(Answer::Refused(why))) if why == "no"));
        assert!(matches!(compile(&[FromWorker::Clean], false).await, Err(BackendError::Wire(_))));
    }

    #[tokio::test]
    async fn a_program_that_asks_for_connections_is_answered_one_at_a_time() {
        let dial = FromWorker::Dial { host: b"a.test".to_vec(), port: 443, tls: None };
        let (talk, mut theirs) = with(&[FromWorker::Started, dial.clone()]).await;
        start(&talk).await.unwrap();
        let mut inbox = Inbox::default();
        for _ in 0..2 {
            let answer = async {
                let end = tokio::time::timeout(Duration::from_millis(50), talk.end_of(0)).await;
                assert!(end.is_err(), "it runs");
            };
            answer.await;
            let mut bytes = [0; 256];
            let count = theirs.read(&mut bytes).unwrap();
            inbox.push(&bytes[..count]);
            while let Some(message) = inbox.take::<ToWorker>().unwrap() {
                if matches!(message, ToWorker::NotDialled) {
                    theirs.write_all(&dial.encode()).unwrap();
                }
            }
        }
        theirs.write_all(&dial.encode().repeat(MOST_DIALLING + 1)).unwrap();
        assert!(matches!(talk.end_of(0).await, Err(BackendError::Wire(_))), "several at once");
        let (talk, _theirs) = with(std::slice::from_ref(&dial)).await;
        assert!(matches!(start(&talk).await, Err(BackendError::Wire(_))), "none of its programs runs");
    }

    #[tokio::test]
    async fn nonsense_is_no_message() {
        let (talk, mut theirs) = with(&[FromWorker::Started]).await;
        start(&talk).await.unwrap();
        theirs.write_all(&[0xff; 64]).unwrap();
        assert!(matches!(talk.end_of(0).await, Err(BackendError::Wire(_))));
        assert!(talk.is_spoiled());
    }

    #[tokio::test]
    async fn a_worker_that_goes_away_has_said_nothing() {
        let (talk, theirs) = with(&[FromWorker::Started]).await;
        start(&talk).await.unwrap();
        drop(theirs);
        assert_eq!(talk.end_of(0).await.unwrap(), None);
        assert!(talk.is_spoiled());
    }

    #[tokio::test]
    async fn a_refusal_is_its_words_and_the_last_thing_asked_of_it() {
        let (talk, mut theirs) = with(&[FromWorker::Failed("no".into())]).await;
        assert!(matches!(talk.opened().await, Ok(Answer::Refused(why)) if why == "no"));
        assert!(talk.is_spoiled());
        talk.open(&run()).await.unwrap();
        let mut bytes = [0; 4];
        theirs.read_exact(&mut bytes).unwrap();
        assert_eq!(u32::from_le_bytes(bytes) as usize + 4, run().encode().len());
    }
}
