//! Settings of an open bucket.

use std::{sync::Arc, time::Duration};

use crate::{
    kept::{Keep, Part},
    rules::Rule,
};

/// A place in a log that somebody saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The number of a frame.
    pub frame: u64,
    /// Its hash.
    pub sum: [u8; 32],
}

/// A process that joins, as others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// Shown to people: host and process.
    pub told: String,
    /// By which a process of the same machine finds out that the writer has ended.
    pub mark: String,
}

/// Settings of an open bucket.
#[derive(Clone)]
pub struct Settings {
    /// This process.
    pub who: Who,
    /// True when the writer with this mark has surely ended.
    pub has_ended: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// Told, while the store does not answer, what is waited for. Called by any thread, once a minute at most.
    pub tell: Arc<dyn Fn(&str) + Send + Sync>,
    /// The end of the log when this host looked last.
    pub known: Option<Known>,
    /// How long a lease stands still until its writer is fenced.
    pub patience: Duration,
    /// How long joining waits for a writer that is at work.
    pub wait: Duration,
    /// How long a frame whose end is not known is sent again.
    pub settle: Duration,
    /// Threads that send packs; with 0 the caller does.
    pub threads: usize,
    /// Frames since the last table at which there is a new one.
    pub table_every: u64,
    /// Frames since the last table at which there is a new one in any case, also amid the writing: about so many are
    /// read to open the bucket.
    pub frames_max: u64,
    /// Most frames behind a table that are read: more are no log that this program wrote.
    pub follow_max: u64,
    /// Bytes of packs that are kept in memory for readers.
    pub cache_bytes: u64,
    /// Bytes of a block of that memory: a read of one byte fetches so many, and verifies a pack that has no more.
    pub block_bytes: u64,
    /// Where this host keeps what it read.
    pub keep: Option<Arc<dyn Keep>>,
    /// A write of so many bytes is a pack by itself, so that its object goes when the range does.
    pub large: usize,
    /// Bytes at which a pack of short writes is closed.
    pub small_max: usize,
    /// Most bytes of short writes that stand in a frame: frames stay for ever.
    pub inline_max: usize,
    /// Seconds for which stays what a frame dropped.
    pub trash: u64,
    /// Most bytes of memory, roughly, that the state of the bucket may take: a log that needs more is refused.
    pub memory: u64,
    /// Most names of one folder that are taken from a store. A table has room for fewer packs.
    pub names_max: usize,
    /// The rule that is broken.
    #[cfg(feature = "planted-bugs")]
    pub broken: Option<Rule>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            who: Who::default(),
            has_ended: Arc::new(|_| false),
            tell: Arc::new(|_| {}),
            known: None,
            patience: Duration::from_secs(600),
            wait: Duration::ZERO,
            settle: Duration::from_secs(900),
            threads: 4,
            table_every: 16,
            frames_max: 512,
            follow_max: 1 << 16,
            cache_bytes: 64 << 20,
            block_bytes: 128 << 10,
            keep: None,
            large: 256 << 10,
            small_max: 4 << 20,
            inline_max: 32 << 10,
            trash: 24 * 3600,
            memory: u64::MAX,
            names_max: 1 << 24,
            #[cfg(feature = "planted-bugs")]
            broken: None,
        }
    }
}

impl Settings {
    /// The bytes of a part of an object, if this host has them.
    pub(crate) fn kept(&self, part: &Part) -> Option<Vec<u8>> {
        part.load(self.keep.as_ref(), self.keeps(Rule::KeptHashed))
    }

    /// True when the steps keep this rule.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    /// True: a product keeps all rules.
    #[cfg(not(feature = "planted-bugs"))]
    #[allow(clippy::unused_self, reason = "simulations have a rule to leave out")]
    pub(crate) const fn keeps(&self, _: Rule) -> bool {
        true
    }
}
