//! Decides whether another process looks for the holes of a file, or the file is read with its holes, or
//! neither (decision 82).
//!
//! *Invariants:* where helpers can be started, this process never looks through a file that another user may
//! have open. The waiting and reading that files of one owner have cost take nothing from other owners, up
//! to a bound for all owners together.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::AsRawFd,
    sync::{Once, atomic::Ordering::Relaxed},
    time::Duration,
};

use onefold_core::{Error, Kind, Result};
use parking_lot::Mutex;

use super::{
    helper::{Asked, MAY_START, Spent, ask_helper, earlier},
    seeking::{Question, Stretch},
};

/// How much is spent at most on the files of one owner, and of all owners together: a user may own files by
/// many ids (`/etc/subuid`).
const MOST: [Spent; 2] = [
    Spent {
        in_vain: 2,
        still: Duration::from_secs(60),
        time: Duration::from_secs(3600),
        read: 256 << 30,
    },
    Spent {
        in_vain: 8,
        still: Duration::from_secs(240),
        time: Duration::from_secs(4 * 3600),
        read: 1 << 40,
    },
];

/// How long a helper may make no progress while it looks at a file: at the first one of an owner at which it
/// stops, and at each later one.
const PATIENCE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(1)];

static SPENDING: Mutex<Spending> = Mutex::new(Spending::NONE);

/// A file that another user may have open.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    pub(super) owner: u32,
    /// Bytes of its holes.
    pub(super) holes: u64,
}

/// Why nobody looks for the holes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// The helper that looked was given up.
    Late,
    /// Looking at files of this owner took too long.
    Owner,
    /// Looking at files of several owners took too long.
    All,
    /// No helper can be started.
    NoProcess,
}

/// Answers a question about a file. A helper looks through a file that another user may have open; if none
/// does, the whole range counts as data.
///
/// # Errors
/// `Busy` when nobody looks for holes and the file has too many bytes, and the errors of the system.
pub(super) fn ask(file: &File, shared: Option<Shared>, question: Question) -> Result<Stretch> {
    let wrong = |errno: rustix::io::Errno| Error::from_io("cannot look for holes", errno.into());
    // A program that uses the library can start no helper: helpers are the command itself.
    let Some(shared) = shared.filter(|_| MAY_START.load(Relaxed)) else {
        return question.answer(file).map_err(wrong);
    };
    let patience = SPENDING.lock().patience(shared.owner);
    let why = match patience {
        Err(why) => why,
        Ok(patience) => {
            let mut spent = Spent::default();
            let asked = ask_helper(file, question, patience, &mut spent);
            SPENDING.lock().add(shared.owner, &spent);
            match asked {
                Asked::Answered(answer) => return answer.map_err(wrong),
                Asked::Late => Why::Late,
                Asked::Nobody => Why::NoProcess,
            }
        }
    };
    why.warn(file, shared.owner);
    let Some(end) = question.end else { return Ok(Some((question.from, u64::MAX))) };
    let holes = shared.holes.min(end - question.from);
    let may = SPENDING.lock().may_read(shared.owner, holes);
    match may {
        true => Ok(Some((question.from, end))),
        false => Err(why.error(shared.owner)),
    }
}

impl Why {
    /// Warns of each file at which a helper was given up, and once that this system starts no helper.
    fn warn(self, file: &File, owner: u32) {
        static TOLD: Once = Once::new();
        match self {
            Why::Late => {
                let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
                let path = path.unwrap_or_else(|_| "a file".into());
                tracing::warn!("{}: {}", path.display(), locked(owner));
            }
            Why::NoProcess => TOLD.call_once(|| {
                tracing::warn!(
                    "no process can be started that looks for holes: files that others may have open are \
                     read with their holes"
                );
            }),
            Why::Owner | Why::All => {}
        }
    }

    fn error(self, owner: u32) -> Error {
        let why = match self {
            Why::Late => locked(owner),
            Why::Owner => no_more(&format!("other files of user {owner}")),
            Why::All => no_more("files of several users"),
            Why::NoProcess => "no process can be started that looks for its holes".into(),
        };
        Error::new(Kind::Busy, format!("{why}; too many bytes would be read with them"))
    }
}

/// The sentence about a file at which a helper was given up.
fn locked(owner: u32) -> String {
    format!(
        "its holes can't be found, as somebody keeps it locked or it has very many pieces (its owner is \
         user {owner})"
    )
}

/// The sentence about a file of an owner on whose files, or on others, too much was spent.
fn no_more(at: &str) -> String {
    format!("its holes are not looked for any more, since looking at {at} took too long")
}

/// The waiting and reading that this process spent, and the helpers of earlier processes that still hang.
struct Spending {
    /// True once the hanging helpers of earlier processes are counted.
    knows_earlier: bool,
    /// By the user id of the files' owner.
    by_owner: BTreeMap<u32, Spent>,
    by_all: Spent,
}

impl Spending {
    const NONE: Spending = Spending {
        knows_earlier: false,
        by_owner: BTreeMap::new(),
        by_all: Spent { in_vain: 0, still: Duration::ZERO, time: Duration::ZERO, read: 0 },
    };

    /// How long a helper may make no progress at the next file of this owner.
    ///
    /// # Errors
    /// The reason why nobody looks at this owner's files any more.
    fn patience(&mut self, owner: u32) -> Result<Duration, Why> {
        if !self.knows_earlier {
            self.knows_earlier = true;
            for owner in earlier() {
                self.add(owner, &Spent { in_vain: 1, ..Spent::default() });
            }
        }
        let his = self.by_owner.get(&owner).copied().unwrap_or_default();
        if his.is_over(&MOST[0]) {
            return Err(Why::Owner);
        }
        if self.by_all.is_over(&MOST[1]) {
            return Err(Why::All);
        }
        Ok(match his.in_vain {
            0 => PATIENCE[0].saturating_sub(his.still).max(PATIENCE[1]),
            _ => PATIENCE[1],
        })
    }

    fn add(&mut self, owner: u32, spent: &Spent) {
        for sum in [self.by_owner.entry(owner).or_default(), &mut self.by_all] {
            sum.in_vain += spent.in_vain;
            sum.still += spent.still;
            sum.time += spent.time;
            sum.read += spent.read;
        }
    }

    /// True when holes of so many bytes may be read; these bytes count as read then.
    fn may_read(&mut self, owner: u32, holes: u64) -> bool {
        let his = self.by_owner.get(&owner).copied().unwrap_or_default();
        let fits = |sum: Spent, most: Spent| holes <= most.read - sum.read;
        let may = fits(his, MOST[0]) && fits(self.by_all, MOST[1]);
        if may {
            self.add(owner, &Spent { read: holes, ..Spent::default() });
        }
        may
    }
}

impl Spent {
    /// True when no more may be spent on looks.
    fn is_over(&self, most: &Spent) -> bool {
        self.in_vain >= most.in_vain || self.still >= most.still || self.time >= most.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Spending {
        Spending { knows_earlier: true, ..Spending::NONE }
    }

    const LATE: Spent = Spent { in_vain: 1, still: PATIENCE[0], time: PATIENCE[0], read: 0 };

    #[test]
    fn rule_07_locked_files_of_one_owner_take_nothing_from_another() {
        let mut spending = fresh();
        assert_eq!(spending.patience(1), Ok(PATIENCE[0]));
        spending.add(1, &LATE);
        assert_eq!(
            (spending.patience(1), spending.patience(2)),
            (Ok(PATIENCE[1]), Ok(PATIENCE[0]))
        );
        spending.add(1, &LATE);
        assert_eq!(
            (spending.patience(1), spending.patience(2)),
            (Err(Why::Owner), Ok(PATIENCE[0]))
        );
        assert!(spending.may_read(1, MOST[0].read) && !spending.may_read(1, 1));
        assert!(spending.may_read(2, MOST[0].read));
        // Who owns files by many ids is stopped by what there is for all.
        for owner in 2..5 {
            spending.add(owner, &LATE);
            spending.add(owner, &LATE);
        }
        assert_eq!(spending.patience(9), Err(Why::All));
        assert!((3..5).all(|owner| spending.may_read(owner, MOST[0].read)));
        assert!(!spending.may_read(9, 1) && spending.may_read(9, 0));
    }

    #[test]
    fn rule_07_short_locks_again_and_again_are_counted_together() {
        let mut spending = fresh();
        let short = Duration::from_secs(20);
        spending.add(1, &Spent { still: short, time: short, ..Spent::default() });
        assert_eq!(spending.patience(1), Ok(PATIENCE[0] - short));
        spending.add(1, &Spent { still: 2 * short, ..Spent::default() });
        assert_eq!(spending.patience(1), Err(Why::Owner));
        spending.add(2, &Spent { time: MOST[0].time, ..Spent::default() });
        assert_eq!(
            (spending.patience(2), spending.patience(3)),
            (Err(Why::Owner), Ok(PATIENCE[0]))
        );
    }

    #[test]
    fn rule_07_whom_nobody_looks_for_is_not_called_locked() {
        for why in [Why::Owner, Why::All, Why::NoProcess] {
            assert!(!why.error(7).to_string().contains("locked"));
        }
        assert!(Why::Owner.error(7).to_string().contains("other files of user 7"));
    }
}
