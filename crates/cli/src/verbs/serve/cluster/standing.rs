//! Waiting for the turn of this server, where others may be at work.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use onefold::parts::cluster_store::{Backing, Url};
use onefold_backend::systemd::Notifier;
use onefold_cluster::{Found, Gateway, Session, Standby};
use onefold_console::failure::Failure;
use onefold_core::Kind;

use super::{
    super::options::{Options, note},
    stops::{End, Stops},
};

/// Between two looks whether another server still is at work.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Time between two lines of the log about an error that stays.
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Opens the store. A folder that another process has is waited for by a server that stands by; nothing when
/// a signal came first.
pub(super) fn open(
    options: &Options,
    url: &Url,
    notifier: &Notifier,
    stops: Option<&Stops>,
) -> Result<Option<Backing>, Failure> {
    let mut said = false;
    loop {
        let busy = match (Backing::open(url, options.pace.timeout()), url) {
            (Err(error), Url::Folder(_)) if error.kind() == Kind::Busy => error,
            (opened, _) => return Ok(Some(opened?)),
        };
        let Some(stops) = stops else { return Err(busy.into()) };
        if !std::mem::replace(&mut said, true) {
            stands_by(notifier, &busy.to_string());
        }
        if matches!(stops.within(LOOK_AGAIN), Some(End::Asked)) {
            return Ok(None);
        }
    }
}

fn stands_by(notifier: &Notifier, why: &str) {
    tracing::info!("standing by: {why}");
    // The service has begun: it may wait as long as the other one lives.
    note(notifier.ready(&format!("standing by: {why}")));
}

/// The outcome of waiting.
pub(super) enum Waited {
    Mine(Gateway),
    Ended(End),
}

/// Waits until no other server is at work.
pub(super) fn stand_by(
    session: &Arc<Session>,
    shown: &str,
    notifier: &Notifier,
    stops: &Stops,
) -> Result<Waited, Failure> {
    let mut standby = Standby::new(session.clone());
    let (mut said, mut failing) = (String::new(), None::<Instant>);
    loop {
        let state = match standby.look() {
            Ok(Found::Mine(gateway)) => {
                match gateway.before() {
                    Some(before) => tracing::warn!(
                        "server {before} showed no sign of life: shut it out, and took {shown} over"
                    ),
                    None => tracing::debug!("no other server is at work on {shown}"),
                }
                return Ok(Waited::Mine(gateway));
            }
            Ok(Found::Serves(server, _)) => format!("server {server} serves {shown}"),
            Ok(Found::Writes(volume)) => {
                format!("another server writes volume '{}' of {shown}", volume.escape_debug())
            }
            Ok(Found::Waits(times, _)) => {
                format!("the last takeovers of {shown} failed, {times} in a row")
            }
            Ok(Found::LooksAgain) => String::new(),
            Err(error) if error.kind() == Kind::Stopped => {
                return Ok(Waited::Ended(End::Lost(error)));
            }
            Err(error) if error.kind() == Kind::Denied => return Err(error.into()),
            Err(error) => {
                if failing.is_none_or(|at| at.elapsed() >= SAID_AGAIN) {
                    failing = Some(Instant::now());
                    tracing::warn!("{error}");
                }
                String::new()
            }
        };
        if !state.is_empty() && state != said {
            stands_by(notifier, &state);
            said = state;
        }
        if matches!(stops.within(LOOK_AGAIN), Some(End::Asked)) {
            return Ok(Waited::Ended(End::Asked));
        }
    }
}
