//! One block of a volume in the model: its durable value and the versions since.

use onefold_testbed::content::{Content, ZEROES};

use super::LOST;

/// Is a version there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The version was acknowledged, or read.
    Sure,
    /// Its write failed: it is there or not, and a read will tell.
    Maybe,
    /// A read told that it is not there; after a crash it may be yet.
    Ghost,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    ticket: u64,
    content: Content,
    standing: Standing,
}

/// The contents that a block may hold.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// The durable value; several after a crash until a read tells which.
    durable: Vec<Content>,
    /// Versions that are not durable, in the order of arrival.
    later: Vec<Version>,
    /// Some of the values before the durable one, the newest last.
    older: Vec<Content>,
    /// When the durable value became so, in settles of the store.
    pub(super) settled: u64,
    /// Recoveries since the durable value became so.
    pub(super) recoveries: u64,
    /// Values that a read after a recovery told are not there.
    rejected: Vec<Content>,
    /// When damage met the store, the durable value was among the newest: it may be gone since
    /// then.
    pub(super) in_tail: bool,
    /// Its zeroes may be stored as a block: it was zeroed in parts.
    pub(super) zeroed_in_parts: bool,
}

/// Former values to remember: enough to say "an old version came back" in a report.
const OLDER_LIMIT: usize = 24;

impl Default for Cell {
    fn default() -> Cell {
        Cell {
            durable: vec![ZEROES],
            later: Vec::new(),
            older: Vec::new(),
            settled: 0,
            recoveries: 0,
            rejected: Vec::new(),
            in_tail: false,
            zeroed_in_parts: false,
        }
    }
}

impl Cell {
    pub(super) fn push(&mut self, content: Content, ticket: u64, standing: Standing) {
        if standing == Standing::Maybe
            && self
                .later
                .last()
                .is_some_and(|last| last.content == content && last.standing == standing)
        {
            return;
        }
        self.later.push(Version { ticket, content, standing });
    }

    /// The contents that a read may return now, the likeliest first.
    pub(super) fn live(&self) -> Vec<Content> {
        let mut live = Vec::new();
        for version in self.later.iter().rev() {
            match version.standing {
                Standing::Ghost => {}
                Standing::Maybe => live.push(version.content),
                Standing::Sure => {
                    live.push(version.content);
                    return live;
                }
            }
        }
        live.extend_from_slice(&self.durable);
        live
    }

    /// The cell of a copy: it holds durably what this one holds now.
    pub(super) fn copied(&self, settled: u64) -> Cell {
        let zeroed_in_parts = self.zeroed_in_parts;
        let (durable, older) = (self.live(), self.older.clone());
        Cell { durable, older, settled, zeroed_in_parts, ..Cell::default() }
    }

    /// It holds what it may hold after a crash, or what another one may hold.
    pub(super) fn or(&mut self, other: &Cell) {
        self.durable = self.after_crash();
        self.later.clear();
        self.durable.extend(other.live());
        self.zeroed_in_parts |= other.zeroed_in_parts;
        self.durable.sort_unstable();
        self.durable.dedup();
    }

    /// The contents that a read may return after a crash now.
    pub(super) fn after_crash(&self) -> Vec<Content> {
        let mut all = self.durable.clone();
        all.extend(self.later.iter().map(|version| version.content));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A read returned `content`, one of [`live`](Cell::live).
    pub(super) fn pin(&mut self, content: Content) {
        let found = self
            .later
            .iter()
            .rposition(|version| version.content == content && version.standing != Standing::Ghost);
        for version in self.later.iter_mut().skip(found.map_or(0, |index| index + 1)) {
            version.standing = Standing::Ghost;
        }
        match found {
            Some(index) => self.later[index].standing = Standing::Sure,
            None => self.settle_on(content),
        }
    }

    fn settle_on(&mut self, content: Content) {
        let former = std::mem::replace(&mut self.durable, vec![content]);
        if former.len() > 1 {
            self.rejected = former.clone();
        }
        self.older.extend(former.into_iter().filter(|&old| old != content));
        let surplus = self.older.len().saturating_sub(OLDER_LIMIT);
        self.older.drain(..surplus);
    }

    /// All with `ticket` or a lower one is durable.
    pub(super) fn advance(&mut self, ticket: u64, settled: u64) {
        let Some(last) = self
            .later
            .iter()
            .rposition(|version| version.standing == Standing::Sure && version.ticket <= ticket)
        else {
            return;
        };
        let gone: Vec<Version> = self.later.drain(..=last).collect();
        self.older.extend(gone.iter().rev().skip(1).rev().map(|version| version.content));
        self.settle_on(gone[last].content);
        self.settled = settled;
        self.in_tail = false;
        self.recoveries = 0;
    }

    /// The store was opened again: what survived is durable now, a read will tell what it is.
    /// Damage may have cost what became durable since `tail`.
    pub(super) fn restart(&mut self, settled: u64, tail: Option<u64>) {
        self.in_tail |= tail.is_some_and(|tail| self.settled >= tail);
        if !self.later.is_empty() {
            self.durable = self.after_crash();
            self.later.clear();
            self.settled = settled;
            self.recoveries = 0;
        }
        self.recoveries += 1;
    }

    /// The block reads as zeroes, durably.
    pub(super) fn clear(&mut self, settled: u64) {
        self.later.clear();
        self.settle_on(ZEROES);
        self.settled = settled;
    }

    /// The block is lost, durably.
    pub(super) fn lose(&mut self, settled: u64) {
        self.later.clear();
        self.settle_on(LOST);
        self.settled = settled;
    }

    /// The block may be lost.
    pub(super) fn may_be_lost(&mut self) {
        if !self.durable.contains(&LOST) {
            self.durable.push(LOST);
        }
    }

    /// The block may read as zeroes.
    pub(super) fn may_be_clear(&mut self) {
        if !self.durable.contains(&ZEROES) {
            self.durable.push(ZEROES);
        }
    }

    /// True when `content` was its value before the durable one.
    pub(super) fn was(&self, content: Content) -> bool {
        self.older.contains(&content)
    }

    /// True when `content` could have been there after the last recovery, and a read told that it
    /// is not.
    pub(super) fn was_rejected(&self, content: Content) -> bool {
        self.rejected.contains(&content)
    }

    /// True when all that it may hold now is zeroes.
    pub(super) fn is_clear(&self) -> bool {
        self.live() == [ZEROES]
    }
}
