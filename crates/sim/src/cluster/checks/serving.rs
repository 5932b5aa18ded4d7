//! Servers that stand by for each other: one at a time, and nobody who lives is shut out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use onefold_core::object::ObjectName;
use onefold_testbed::Objects;

use crate::checker::{Checker, Failure};

/// The object that names the server at work.
pub(in crate::cluster) const OBJECT: &str = "gateway";

/// What is known of the servers of a store.
#[derive(Default)]
pub(in crate::cluster) struct Serving {
    /// The identity of the one at work; none after it gave up.
    at_work: Option<String>,
    /// When each showed that it lives: a copy of what it showed before shows nothing.
    beats: BTreeMap<String, Vec<Duration>>,
    /// The names and beats that the object had, those that it has now, and since when.
    said: BTreeSet<(Vec<u8>, Vec<u8>)>,
    says: (Vec<u8>, Vec<u8>),
    since: Duration,
    /// Takeovers in a row that came to nothing, as the object has them.
    failed: u32,
}

/// How long those that stand by wait after so many takeovers that came to nothing.
fn pause(failed: u32, lease: Duration) -> Duration {
    match failed {
        0 => Duration::ZERO,
        failed => lease / 9 * (1 << (failed - 1).min(6)),
    }
}

impl Serving {
    /// True when another server is at work, or was after this one.
    pub(in crate::cluster) fn is_replaced(&self, identity: &str) -> bool {
        self.at_work.as_deref() != Some(identity)
    }

    /// Looks at the object after it was changed.
    pub(in crate::cluster) fn after(
        &mut self,
        objects: &Objects,
        object: &ObjectName,
        now: Duration,
        lease: Duration,
    ) -> Option<Failure> {
        let says = &objects.get(object)?.omap;
        let name = says.get(&b"o"[..])?;
        // That a standby can write is no sign of life of the server at work, nor is a copy of a beat.
        let beat = says.get(&b"b"[..]).cloned().unwrap_or_default();
        let copy = !self.said.insert((name.clone(), beat.clone()));
        let takeovers = says.get(&b"t"[..]).and_then(|value| value[..].try_into().ok());
        let failed = std::mem::replace(&mut self.failed, takeovers.map_or(0, u32::from_le_bytes));
        let still = now.saturating_sub(self.since);
        if self.says != (name.clone(), beat.clone()) {
            (self.says, self.since) = ((name.clone(), beat), now);
        }
        let (first, identity) = name.split_first()?;
        let identity = String::from_utf8_lossy(identity).into_owned();
        let serves = *first == b'!';
        if serves && !copy {
            self.beats.entry(identity.clone()).or_default().push(now);
        }
        let after = serves.then_some(identity);
        if after == self.at_work {
            return None;
        }
        let before = std::mem::replace(&mut self.at_work, after.clone());
        let waits = pause(failed, lease) + before.as_ref().map_or(Duration::ZERO, |_| lease);
        if after.is_some() && failed > 0 && still < waits {
            let what = format!("{after:?} takes over {still:?} after takeover {failed} failed");
            return Some(Failure::new(Checker::PauseKept, what));
        }
        let two = before.filter(|before| after.is_some() && !objects.is_fenced(before));
        two.map(|before| {
            let what = format!("{after:?} takes the place of {before}, which was not shut out");
            Failure::new(Checker::OneServer, what)
        })
    }

    /// A standby is about to shut a server out: it saw no sign of life for a lease. It looked a ninth of the
    /// lease ago at most.
    pub(in crate::cluster) fn judge(
        &self,
        identity: &str,
        now: Duration,
        lease: Duration,
    ) -> Option<Failure> {
        if self.at_work.as_deref() != Some(identity) {
            return None;
        }
        let looked = now.saturating_sub(lease / 9);
        let last = self.beats.get(identity)?.iter().rev().find(|beat| **beat <= looked)?;
        let still = now - *last;
        (still < lease).then(|| {
            let what = format!("{identity} lived {still:?} ago, and is shut out");
            Failure::new(Checker::LivingSpared, what)
        })
    }
}
