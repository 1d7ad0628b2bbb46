//! Trials of issuers: one credential of each is minted, tried, revoked and seen dead, as a run's would be.

use std::rc::Rc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::Refused;
use super::refusal::of_issuer;
use super::tasks::{Known, Tasks};
use crate::config::Kind;
use crate::control::{Ask, Ended, State};
use crate::issuer::{Alive, Scope};
use crate::trial::{Finding, Seen, Tested};

/// How long a credential of a trial may live at most, where nothing ends it.
const TTL: Duration = Duration::from_secs(30);

/// What a credential of a trial is called.
const NAME: &str = "test";

/// Tries every issuer, or the one that is named; side by side, since each waits for its own server.
pub(super) async fn all(tasks: &Rc<Tasks>, run: &str, issuer: Option<&str>) -> Result<Vec<Tested>, Refused> {
    let known = match issuer {
        Some(name) => vec![tasks.known(name)?],
        None => tasks.issuers()?.values().cloned().collect(),
    };
    let began: Vec<_> = known
        .into_iter()
        .map(|known| tokio::task::spawn_local(try_one(tasks.clone(), known, run.to_owned())))
        .collect();
    let mut tested = vec![];
    for one in began {
        tested.extend(one.await.ok());
    }
    Ok(tested)
}

async fn try_one(tasks: Rc<Tasks>, known: Known, run: String) -> Tested {
    let seen = match &known.config.kind {
        Kind::Static => read(&known).await,
        kind => match narrowest(kind) {
            Ok(scope) => mint_and_end(&tasks, &known, &run, scope).await,
            Err(field) => failed(
                format!("its table allows no {field}, so that nothing can be asked of it"),
                "name at least one in issuers.toml",
            ),
        },
    };
    // Who didn't mint has nothing to say beyond why.
    let findings = if seen.is_fine() { findings(&known).await } else { vec![] };
    Tested { issuer: known.config.name.clone(), seen, findings }
}

/// Reads a secret that nobody mints. What it is good for isn't tried: only its host knows.
async fn read(known: &Known) -> Seen {
    match known.issuer.mint("", &Scope::new(), UNIX_EPOCH).await {
        Ok(_) => Seen::Weak,
        Err(error) => of_refused(of_issuer(&error)),
    }
}

/// The first value of each field of a ceiling; the first field that has none.
fn narrowest(kind: &Kind) -> Result<Scope, String> {
    let first = |(field, values): (&str, &[String])| match values.first() {
        Some(value) => Ok((field.to_owned(), vec![value.clone()])),
        None => Err(format!("`{field}`")),
    };
    kind.ceiling().into_iter().map(first).collect()
}

async fn mint_and_end(tasks: &Tasks, known: &Known, run: &str, scope: Scope) -> Seen {
    let ask = Ask {
        name: NAME.to_owned(),
        issuer: known.config.name.clone(),
        scope,
        ttl_ms: TTL.as_millis() as u64,
        asked_ttl_ms: None,
        deliver: vec![],
        in_requests: None,
    };
    let (task, began) = (tasks.next_trial(), Instant::now());
    let lease = match tasks.mint(task, run, &ask, known).await {
        Ok(lease) => lease,
        Err(refused) => {
            // It may have been made all the same, where its answer was lost.
            let ended = tasks.end(task).await;
            return of_refused(with_what_lives(refused, &ended));
        }
    };
    let minted = began.elapsed();
    let tried = if lease.can_revoke { works(tasks, task).await } else { Ok(()) };
    let ended = tasks.end(task).await;
    if let Err(refused) = tried {
        return of_refused(with_what_lives(refused, &ended));
    }
    match ended.into_iter().next().map(|ended| ended.state) {
        Some(State::Dead { after_us, verified }) => {
            Seen::Dead { minted, after: Duration::from_micros(after_us), verified }
        }
        Some(State::Expires) => {
            let expires = lease.expires.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds));
            Seen::Expires { minted, expires }
        }
        Some(State::Unknown { why }) => of_unknown(&why),
        None => of_unknown("nothing is known of its end"),
    }
}

/// Whether what was minted does something: without that, its death would prove nothing.
async fn works(tasks: &Tasks, task: u64) -> Result<(), Refused> {
    let doesnt = |why: String| Refused {
        kind: crate::control::Refusal::Upstream,
        message: format!("mints a credential that doesn't work: {why}"),
        fix: "see that the first values of its table are there on the server, and let in whoever it mints"
            .to_owned(),
    };
    match tasks.try_held(task).await {
        Some(Ok(Alive::Yes)) => Ok(()),
        Some(Ok(Alive::No(how))) => Err(doesnt(how)),
        Some(Err(error)) => Err(doesnt(error.to_string())),
        None => Err(doesnt("it was gone before it was tried".to_owned())),
    }
}

/// What failed, and that something may be alive because of that.
fn with_what_lives(refused: Refused, ended: &[Ended]) -> Refused {
    let why = ended.iter().find_map(|ended| match &ended.state {
        State::Unknown { why } => Some(why),
        State::Dead { .. } | State::Expires => None,
    });
    match why {
        Some(why) => Refused {
            message: format!("{}; what it may have minted MAY STILL BE ALIVE: {why}", refused.message),
            fix: format!("{}; every next command tries to revoke it", refused.fix),
            ..refused
        },
        None => refused,
    }
}

async fn findings(known: &Known) -> Vec<Finding> {
    match known.issuer.findings().await {
        Ok(findings) => findings,
        Err(error) => {
            let Refused { message, fix, .. } = of_issuer(&error);
            vec![Finding { message: format!("what else it lets in could not be looked at: {message}"), fix }]
        }
    }
}

fn of_unknown(why: &str) -> Seen {
    failed(
        format!("what it minted MAY STILL BE ALIVE: {why}"),
        "see that its root may revoke what it mints; every next command tries again",
    )
}

fn failed(message: String, fix: &str) -> Seen {
    Seen::Failed(Finding { message, fix: fix.to_owned() })
}

fn of_refused(Refused { message, fix, .. }: Refused) -> Seen {
    Seen::Failed(Finding { message, fix })
}
