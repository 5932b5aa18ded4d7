//! The state that all files of the nodes share: which nodes are there, and which are current.

use std::sync::Arc;

use onefold_core::{Error, Files, Kind, Lock, Result};
use parking_lot::Mutex;

use super::{
    code::Code,
    fence::{self, Fences},
    label,
    label::{Absent, NODES_MAX, NodeLabel, View},
};
use crate::{format::Identity, rules::Rule, settings::Settings};

/// The state that all files of the nodes share.
pub(crate) struct Shared {
    pub(super) directories: Vec<Option<Arc<dyn Files>>>,
    /// A bit for each that is on another host: its label may be a lie.
    pub(super) far: u64,
    pub(crate) code: Code,
    pub(crate) identity: Identity,
    pub(super) secret: [u8; 32],
    /// Puts go on with `k + 1` columns.
    pub(super) degraded: bool,
    pub(crate) state: Mutex<State>,
    /// The locks that this process has on all nodes that it may write to.
    pub(super) fences: Mutex<Fences>,
    /// Held while nodes that are here are put within the fences: a node counts only when that is done.
    pub(super) looking: Mutex<()>,
    /// Its rules; nothing else of it is used.
    pub(super) settings: Settings,
}

pub(crate) struct State {
    pub(crate) view: View,
    /// Nodes that are there, and current.
    pub(super) here: u64,
    /// Of those, which failed or missed something since; and members that are absent and missed
    /// something.
    pub(super) missed: u64,
    /// Nodes whose copy has more than one that is believed: [`Absent::Ahead`].
    pub(super) ahead: u64,
    /// The copy that is read.
    pub(crate) primary: usize,
    /// How far this process has come in making the copies level.
    pub(super) leveling: Leveling,
    /// The copies as they were found, the farthest first; empty once they are level.
    pub(super) copies: Vec<FoundCopy>,
    /// The copy of which the tables are read, until the copies are level.
    pub(super) read_from: usize,
    pub(super) absent: Vec<(usize, Absent)>,
    /// A label of the archive, current or not, says that its lists have seals.
    pub(super) listed: bool,
    /// The nodes were found by such a list.
    pub(super) sealed: bool,
}

/// How far a copy is: the label's generation, and the last change of its log; with the label's
/// bytes, and the length of the log and its last checksum, which all frames before went into.
pub(super) type Reached = ((u64, u64), (Vec<u8>, u64, u64));

/// A copy as a crash may have left it.
#[derive(Clone)]
pub(super) struct FoundCopy {
    pub(super) node: usize,
    pub(super) reached: Reached,
    /// The tables can't be read from it.
    pub(super) is_damaged: bool,
}

/// A process compares the copies first, and makes them level before it changes anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leveling {
    NotCompared,
    Compared,
    Level,
}

/// Bits of a mask.
pub(crate) fn bits(mask: u64) -> impl Iterator<Item = usize> {
    (0..NODES_MAX).filter(move |n| mask >> n & 1 == 1)
}

pub(crate) fn read_label(files: Option<&dyn Files>) -> std::result::Result<NodeLabel, Absent> {
    files.map_or(
        Err(Absent::Gone("its directory is not there, or is another user's".into())),
        NodeLabel::read,
    )
}

impl Shared {
    /// Copies of each file that is no segment.
    pub(crate) fn copies(&self) -> usize {
        2 * self.code.parity() + 1
    }

    pub(super) fn copies_mask(&self) -> u64 {
        u64::MAX >> (NODES_MAX - self.copies())
    }

    /// Copies that must take a change.
    pub(super) fn quorum(&self) -> u32 {
        self.code.parity() as u32 + u32::from(self.settings.keeps(Rule::QuorumOfCopies))
    }

    /// Reads the labels of all nodes; those that are none of a node of this archive are told.
    fn labels(&self) -> (Vec<Option<NodeLabel>>, Vec<(usize, Absent)>) {
        let (mut absent, mut found) = (Vec::new(), Vec::new());
        for (n, files) in self.directories.iter().enumerate() {
            let label = read_label(files.as_deref()).and_then(|label| {
                if self.is_of(&label) && usize::from(label.number) == n {
                    Ok(label)
                } else {
                    Err(Absent::Foreign)
                }
            });
            found.push(label.map_err(|why| absent.push((n, why))).ok());
        }
        label::take_back_proposals(&mut found, self.far, self.code.parity());
        for n in bits(label::doubted(&found, self.far, self.code.parity())) {
            found[n] = None;
            absent.push((n, Absent::Doubted));
        }
        (found, absent)
    }

    /// True when a label is one of this archive.
    fn is_of(&self, label: &NodeLabel) -> bool {
        label.identity().key == self.identity.key
            && label.view.ids.len() == self.directories.len()
            && (usize::from(label.n), usize::from(label.k))
                == (self.code.columns(), self.code.data())
    }

    /// True when a directory with this label would count as a node, wherever it is. Labels that contradict each
    /// other count as well: nobody knows which of them is true.
    pub(crate) fn would_count(&self, label: &NodeLabel) -> bool {
        let (mut found, number) = (self.labels().0, usize::from(label.number));
        if !self.is_of(label) || number >= found.len() {
            return false;
        }
        found[number] = Some(label.clone());
        label::current(&found).is_none_or(|(_, here)| here >> number & 1 == 1)
    }

    /// Reads all labels, and finds out which nodes are current.
    pub(super) fn look(&self) -> Result<()> {
        #[cfg_attr(not(feature = "planted-bugs"), allow(unused_mut))]
        let (mut found, mut absent) = self.labels();
        #[cfg(feature = "planted-bugs")]
        if !self.settings.keeps(Rule::NodeNeedsItsLabel) {
            super::broken::accept_unlabelled(&mut absent, &mut found);
        }
        let Some((view, current)) = label::current(&found) else {
            return Err(Error::new(Kind::Corrupt, "the labels of the nodes contradict each other"));
        };
        absent.extend(bits(view_mask(&found) & !current).map(|n| (n, Absent::Outdated)));
        let _looking = self.looking.lock();
        let here = fence::within(&self.fences, &self.directories, current, |n, error| {
            let why = format!("this process has no lock there: {error}");
            absent.push((n, Absent::Gone(why)));
        });
        let mut state = self.state.lock();
        absent.extend(bits(state.ahead & here).map(|n| (n, Absent::Ahead)));
        absent.sort_by_key(|(n, _)| *n);
        state.missed &= view.members;
        state.listed |= found.iter().flatten().any(|label| label.view.listed);
        (state.view, state.here, state.absent) = (view, here, absent);
        drop(state);
        self.primary().map(|_| ())
    }

    /// Registers the locks of a fence. A node that has come since they were taken is put within it, or does not count.
    pub(super) fn fence(&self, name: &str, locks: Vec<(usize, Box<dyn Lock>)>) -> u64 {
        let _looking = self.looking.lock();
        let id = self.fences.lock().begin(name, locks);
        let here = self.here();
        let within = fence::within(&self.fences, &self.directories, here, |_, _| ());
        self.state.lock().here &= within | !here;
        id
    }

    /// True for a node on another host.
    pub(super) fn is_far(&self, n: usize) -> bool {
        self.far >> n & 1 == 1
    }

    /// The directory of a node that is there.
    pub(crate) fn directory(&self, n: usize) -> Result<&Arc<dyn Files>> {
        self.directories
            .get(n)
            .and_then(Option::as_ref)
            .ok_or_else(|| Error::new(Kind::NotFound, format!("node {n} is not there")))
    }

    /// Nodes that are there, current, and did not fail.
    pub(crate) fn here(&self) -> u64 {
        self.state.lock().readable()
    }

    /// Copies that get changes. Members that are absent are recorded as missing this one.
    pub(super) fn writable_copies(&self) -> Result<Vec<usize>> {
        let mut state = self.state.lock();
        let (here, members) =
            (state.readable() & self.copies_mask(), state.view.members & self.copies_mask());
        state.missed |= members & !here;
        if here.count_ones() < self.quorum() {
            return Err(too_few(here.count_ones(), self.quorum()));
        }
        Ok(bits(here).collect())
    }

    /// The copy that is read: the same one as long as it is there, then one on this host if any is.
    pub(super) fn primary(&self) -> Result<usize> {
        let mut state = self.state.lock();
        let copies = state.readable() & self.copies_mask();
        if copies >> state.primary & 1 == 0 {
            let next = bits(copies & !self.far).chain(bits(copies)).next();
            state.primary = next.ok_or_else(|| {
                Error::new(Kind::Corrupt, "no node with the archive's log is there")
            })?;
        }
        Ok(state.primary)
    }

    /// The copy that is read is damaged: it is left out, unless it is the last one.
    pub(super) fn lose_primary(&self) -> bool {
        let mut state = self.state.lock();
        let primary = 1 << state.primary;
        let others = state.readable() & self.copies_mask() & !primary;
        if others != 0 {
            state.missed |= primary;
        }
        others != 0
    }

    /// Leaves a node out on which a change failed. A full disk stops the change, since
    /// nothing is wrong with its node; one on another host does not with `--degraded`, since its host may lie.
    ///
    /// # Errors
    /// The failure, when the change stops.
    pub(super) fn failed(&self, n: usize, error: Error) -> Result<Error> {
        match error.kind() {
            Kind::NoSpace if !self.is_far(n) => Err(error),
            Kind::NoSpace if !self.degraded => Err(error.context(format!(
                "node {n}, on another host (`onefold put --degraded` goes on without it)"
            ))),
            _ => {
                self.lose(n);
                Ok(error)
            }
        }
    }

    /// A node failed: it is left out.
    pub(crate) fn lose(&self, n: usize) {
        self.state.lock().missed |= 1 << n;
    }

    /// Tells all others that the nodes which missed something are not current any more, and all of
    /// them that the lists of the archive have seals from now on. The commit lock is held.
    pub(super) fn leave_out_missed(&self) -> Result<()> {
        let (view, missed, becomes_listed) = {
            let state = self.state.lock();
            (state.view.clone(), state.missed & state.view.members, state.becomes_listed())
        };
        if missed == 0 && !becomes_listed {
            return Ok(());
        }
        let members = view.members & !missed;
        let listed = view.listed || becomes_listed;
        self.change_view(View { epoch: view.epoch + 1, members, listed, ..view }, None)
    }

    /// Writes a new view to all members and to a node that joins them: proposed first, then
    /// settled. A node that can't be written is left out of the next view.
    pub(crate) fn change_view(
        &self,
        mut view: View,
        joining: Option<(usize, &dyn Files)>,
    ) -> Result<()> {
        // No member may be two views behind: the current ones get the present view first.
        let (now, here) = {
            let state = self.state.lock();
            (state.view.clone(), state.here & !state.missed & view.members)
        };
        for n in bits(here & !joining.map_or(0, |(n, _)| 1 << n)) {
            self.label(n, &now, false)
                .write(&**self.directory(n)?)
                .unwrap_or_else(|_| self.lose(n));
        }
        view.members &= !self.state.lock().missed | joining.map_or(0, |(n, _)| 1 << n);
        loop {
            let failed = self.write_view(&view, joining)?;
            if failed == 0 {
                break;
            }
            self.state.lock().missed |= failed;
            view = View { epoch: view.epoch + 1, members: view.members & !failed, ..view };
        }
        let mut state = self.state.lock();
        state.here &= view.members;
        state.missed &= view.members;
        state.view = view;
        Ok(())
    }

    /// Writes a view; gives members that did not get it.
    fn write_view(&self, view: &View, joining: Option<(usize, &dyn Files)>) -> Result<u64> {
        let (here, joins) = (self.state.lock().here, joining.map_or(0, |(n, _)| 1 << n));
        for settled in [false, true] {
            let mut failed = view.members & !here & !joins;
            for n in bits(view.members & here & !joins) {
                if self.label(n, view, settled).write(&**self.directory(n)?).is_err() {
                    failed |= 1 << n;
                }
            }
            let copies = (view.members & !failed & self.copies_mask()).count_ones();
            if copies < self.quorum() {
                return Err(too_few(copies, self.quorum()));
            }
            if failed != 0 {
                return Ok(failed);
            }
            if let Some((n, files)) = joining {
                self.label(n, view, settled).write(files)?;
            }
        }
        Ok(0)
    }

    fn label(&self, n: usize, view: &View, settled: bool) -> NodeLabel {
        let (columns, data) = (self.code.columns() as u8, self.code.data() as u8);
        NodeLabel {
            archive: self.identity.id,
            secret: self.secret,
            number: n as u8,
            n: columns,
            k: data,
            view: view.clone(),
            settled,
        }
    }
}

fn view_mask(found: &[Option<NodeLabel>]) -> u64 {
    found.iter().enumerate().fold(0, |mask, (n, label)| mask | u64::from(label.is_some()) << n)
}

impl State {
    /// An older archive is changed by way of a list with a seal, and all of its members are there.
    fn becomes_listed(&self) -> bool {
        self.sealed && !self.view.listed && self.readable() == self.view.members
    }

    pub(super) fn readable(&self) -> u64 {
        self.here & !self.missed
    }
}

pub(crate) fn too_few(there: u32, needed: u32) -> Error {
    let why = format!(
        "{there} of the {needed} nodes with the log that a change needs are there; mount the others, or see `onefold node rebuild`"
    );
    Error::new(Kind::Stopped, why)
}
