//! Several nodes as one: containers in stripes with parity (RAD), log and tables in copies, so that
//! `f = n - k` nodes may be lost.
//!
//! To the engine [`Nodes`] is one directory of files. A segment file is a [`stripe`]: each
//! container is cut into `k` columns, to which `f` of parity are computed, on `n` nodes. All other
//! files have a copy on each of the first `2f + 1` nodes, of which `f + 1` must take every change.
//!
//! *Who is current* is what [`label`]s say. A directory without label, of another archive, of
//! another number, or that missed a change is absent; only [`rebuild`] fills one.
//!
//! *Crash argument:* a change is acknowledged when all nodes that are current have it, and who
//! missed a part of it is no longer named as current by any other
//! ([`confirm`](onefold_core::Files::confirm)). So every current copy has all that was
//! acknowledged; what else a crash left in them may differ, and the first process that changes
//! something makes them equal. Any two groups of `f + 1` copies have one in common: locks and
//! labels of two processes meet there.

pub mod code;
mod copies;
pub mod label;
pub mod rebuild;
pub mod stripe;

use std::sync::Arc;

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

use self::{
    code::Code,
    label::{Absent, CURSOR, NODE, NODES_MAX, NodeLabel, View},
};
use crate::{
    format::Identity,
    settings::{PlantedBug, Settings},
};

/// The nodes of an archive.
pub struct Nodes {
    shared: Arc<Shared>,
}

/// What all files of the nodes look at.
pub(crate) struct Shared {
    directories: Vec<Option<Arc<dyn Files>>>,
    pub(crate) code: Code,
    pub(crate) identity: Identity,
    secret: [u8; 32],
    /// Puts go on with `k + 1` columns.
    degraded: bool,
    state: Mutex<State>,
    /// For defects that the simulator must find.
    settings: Settings,
}

struct State {
    view: View,
    /// Nodes that are there, and current.
    here: u64,
    /// Of those, which failed or missed something since; and members that are absent and missed
    /// something.
    missed: u64,
    /// The copy that is read.
    primary: usize,
    /// The copies were compared by this process.
    compared: bool,
    absent: Vec<(usize, Absent)>,
}

/// How an archive spreads.
#[derive(Clone, Debug)]
pub struct Spread {
    /// Columns of a stripe.
    pub n: usize,
    /// Columns of data.
    pub k: usize,
    /// A random id for each node.
    pub ids: Vec<[u8; 16]>,
}

/// Bits of a mask.
fn bits(mask: u64) -> impl Iterator<Item = usize> {
    (0..NODES_MAX).filter(move |n| mask >> n & 1 == 1)
}

pub(crate) fn is_segment(name: &str) -> bool {
    name.starts_with("segment-")
}

impl Nodes {
    /// Labels empty directories as the nodes of a new archive; durable on return.
    ///
    /// # Errors
    /// `InvalidInput` for a code that can't be; `Exists` when something is in a directory; those of
    /// the system.
    pub fn create(
        directories: Vec<Arc<dyn Files>>,
        spread: &Spread,
        archive: [u8; 16],
        secret: [u8; 32],
    ) -> Result<Nodes> {
        let (nodes, Spread { n, k, ids }) = (directories.len(), spread);
        let code = Code::new(*n, *k)?;
        if *n > nodes
            || nodes > NODES_MAX
            || ids.len() != nodes
            || 2 * code.parity() + 1 > nodes
            || code.parity() == 0
        {
            let copies = 2 * code.parity() + 1;
            let why = format!(
                "the code {n},{k} needs parity, and from {} to {NODES_MAX} nodes: {copies} for the log alone; these are {nodes}",
                copies.max(*n)
            );
            return Err(Error::new(Kind::InvalidInput, why));
        }
        for (number, files) in directories.iter().enumerate() {
            if !files.names()?.is_empty() {
                return Err(Error::new(
                    Kind::Exists,
                    format!("the directory of node {number} is not empty"),
                ));
            }
        }
        let view = View { epoch: 1, members: u64::MAX >> (NODES_MAX - nodes), ids: ids.clone() };
        for (number, files) in directories.iter().enumerate() {
            let label = NodeLabel {
                archive,
                secret,
                number: number as u8,
                n: *n as u8,
                k: *k as u8,
                view: view.clone(),
                settled: true,
            };
            label.write(&**files)?;
        }
        Nodes::open(directories.into_iter().map(Some).collect(), false)
    }

    /// Opens the nodes, as [`open_with`](Self::open_with) with the usual settings.
    ///
    /// # Errors
    /// As there.
    pub fn open(directories: Vec<Option<Arc<dyn Files>>>, degraded: bool) -> Result<Nodes> {
        Nodes::open_with(directories, degraded, &Settings::default())
    }

    /// Looks which of the directories are nodes of one archive, and current. With `degraded`, puts
    /// go on while `k + 1` columns of a stripe can be written.
    ///
    /// # Errors
    /// `NotFound` when there is no node, `Corrupt` when the labels contradict each other.
    pub fn open_with(
        directories: Vec<Option<Arc<dyn Files>>>,
        degraded: bool,
        settings: &Settings,
    ) -> Result<Nodes> {
        let labels: Vec<_> = directories.iter().map(|files| read_label(files.as_deref())).collect();
        // The archive of most of them.
        let count = |label: &NodeLabel| {
            labels.iter().flatten().filter(|other| other.archive == label.archive).count()
        };
        let Some(first) =
            labels.iter().flatten().max_by_key(|label| (count(label), label.view.epoch)).cloned()
        else {
            return Err(Error::new(Kind::NotFound, "no archive"));
        };
        if directories.len() != first.view.ids.len() {
            let why = format!(
                "the archive has {} nodes, and {} directories were given",
                first.view.ids.len(),
                directories.len()
            );
            return Err(Error::new(Kind::InvalidInput, why));
        }
        let shared = Shared {
            directories,
            code: Code::new(usize::from(first.n), usize::from(first.k))?,
            identity: first.identity(),
            secret: first.secret,
            degraded,
            state: Mutex::new(State {
                view: first.view,
                here: 0,
                missed: 0,
                primary: 0,
                compared: false,
                absent: Vec::new(),
            }),
            settings: settings.clone(),
        };
        shared.look()?;
        Ok(Nodes { shared: Arc::new(shared) })
    }

    /// The id of the archive that they hold.
    #[must_use]
    pub fn archive_id(&self) -> [u8; 16] {
        self.shared.identity.id
    }

    /// Nodes that are absent, and why.
    #[must_use]
    pub fn absent(&self) -> Vec<(usize, Absent)> {
        self.shared.state.lock().absent.clone()
    }

    /// How many there are, there or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shared.directories.len()
    }

    /// The code: columns, and columns of data.
    #[must_use]
    pub fn code(&self) -> (usize, usize) {
        (self.shared.code.columns(), self.shared.code.data())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

fn read_label(files: Option<&dyn Files>) -> std::result::Result<NodeLabel, Absent> {
    files.map_or(
        Err(Absent::Gone("its directory is not there, or is another user's".into())),
        NodeLabel::read,
    )
}

impl Shared {
    /// Copies of each file that is no segment.
    fn copies(&self) -> usize {
        2 * self.code.parity() + 1
    }

    fn copies_mask(&self) -> u64 {
        u64::MAX >> (NODES_MAX - self.copies())
    }

    /// Copies that must take a change.
    fn quorum(&self) -> u32 {
        self.code.parity() as u32 + u32::from(!self.settings.has(PlantedBug::FewCopies))
    }

    /// Reads all labels: who is current?
    fn look(&self) -> Result<()> {
        let mut absent = Vec::new();
        let mut found = Vec::new();
        for (n, files) in self.directories.iter().enumerate() {
            let label = read_label(files.as_deref()).and_then(|label| {
                let same = label.identity().key == self.identity.key
                    && label.view.ids.len() == self.directories.len();
                if same && usize::from(label.number) == n {
                    Ok(label)
                } else {
                    Err(Absent::Foreign)
                }
            });
            found.push(label.map_err(|why| absent.push((n, why))).ok());
        }
        if self.settings.has(PlantedBug::MountFilled) {
            for (n, _) in absent.extract_if(.., |(_, why)| *why == Absent::Unlabelled) {
                let known = found.iter().flatten().next().cloned();
                found[n] = known.map(|label| NodeLabel { number: n as u8, ..label });
            }
        }
        let Some((view, here)) = label::current(&found) else {
            return Err(Error::new(Kind::Corrupt, "the labels of the nodes contradict each other"));
        };
        absent.extend(bits(view_mask(&found) & !here).map(|n| (n, Absent::Outdated)));
        absent.sort_by_key(|(n, _)| *n);
        let mut state = self.state.lock();
        state.missed &= view.members;
        (state.view, state.here, state.absent) = (view, here, absent);
        drop(state);
        self.primary().map(|_| ())
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

    /// Copies that take changes. Those that are not there miss this one.
    fn writable_copies(&self) -> Result<Vec<usize>> {
        let mut state = self.state.lock();
        let (here, members) =
            (state.readable() & self.copies_mask(), state.view.members & self.copies_mask());
        state.missed |= members & !here;
        if here.count_ones() < self.quorum() {
            return Err(too_few(here.count_ones(), self.quorum()));
        }
        Ok(bits(here).collect())
    }

    /// The copy that is read: the same one as long as it is there.
    fn primary(&self) -> Result<usize> {
        let mut state = self.state.lock();
        let copies = state.readable() & self.copies_mask();
        if copies >> state.primary & 1 == 0 {
            state.primary = bits(copies).next().ok_or_else(|| {
                Error::new(Kind::Corrupt, "no node with the archive's log is there")
            })?;
        }
        Ok(state.primary)
    }

    /// A node failed: it is left out.
    pub(crate) fn lose(&self, n: usize) {
        self.state.lock().missed |= 1 << n;
    }

    /// Tells all others that who missed something is not current any more. The commit lock is held.
    fn leave_out_missed(&self) -> Result<()> {
        let (view, missed) = {
            let state = self.state.lock();
            (state.view.clone(), state.missed & state.view.members)
        };
        if missed == 0 {
            return Ok(());
        }
        self.change_view(
            View { epoch: view.epoch + 1, members: view.members & !missed, ..view },
            None,
        )
    }

    /// Gives all members a new view: proposed, then settled; and so to a node that joins them. Who
    /// can't be written is left out of the next one.
    fn change_view(&self, mut view: View, joining: Option<(usize, &dyn Files)>) -> Result<()> {
        // Nobody may be two views behind: who is current gets the present one first.
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
    fn readable(&self) -> u64 {
        self.here & !self.missed
    }
}

fn too_few(there: u32, needed: u32) -> Error {
    let why = format!(
        "{there} of the {needed} nodes with the log that a change needs are there; mount the others, or see `onefold archive rebuild`"
    );
    Error::new(Kind::Stopped, why)
}

/// Locks on several nodes.
struct Locks(#[expect(dead_code, reason = "held")] Vec<Box<dyn Lock>>);

impl Lock for Locks {}

impl Files for Nodes {
    fn names(&self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        let here = self.shared.here();
        for n in bits(here) {
            match self.shared.directory(n)?.names() {
                Ok(names) => all.extend(names.into_iter().filter(|name| {
                    name != NODE && name != CURSOR && (is_segment(name) || n < self.shared.copies())
                })),
                Err(_) => self.shared.lose(n),
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn File>> {
        self.create_wide(name, self.shared.code.data() as u8)
    }

    fn create_wide(&self, name: &str, data: u8) -> Result<Arc<dyn File>> {
        if is_segment(name) {
            stripe::create(&self.shared, name, data)
        } else {
            copies::create(&self.shared, name)
        }
    }

    fn open(&self, name: &str) -> Result<Arc<dyn File>> {
        if is_segment(name) {
            stripe::open(&self.shared, name)
        } else {
            copies::open(&self.shared, name)
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mask = if is_segment(name) { u64::MAX } else { self.shared.copies_mask() };
        if !is_segment(name) {
            self.shared.writable_copies()?;
        }
        let mut found = false;
        for n in bits(self.shared.here() & mask) {
            match self.shared.directory(n)?.remove(name) {
                Ok(()) => found = true,
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(_) => self.shared.lose(n),
            }
        }
        if found { Ok(()) } else { Err(Error::new(Kind::NotFound, format!("{name} is not there"))) }
    }

    fn sync_names(&self) -> Result<()> {
        for n in bits(self.shared.here()) {
            if self.shared.directory(n)?.sync_names().is_err() {
                self.shared.lose(n);
            }
        }
        self.shared.writable_copies().map(|_| ())
    }

    fn lock(&self, name: &str, hold: Hold, wait: bool) -> Result<Box<dyn Lock>> {
        let mut locks = Vec::new();
        // Always in this order, so that two processes never wait for each other.
        for n in bits(self.shared.here() & self.shared.copies_mask()) {
            match self.shared.directory(n)?.lock(name, hold, wait) {
                Ok(lock) => locks.push(lock),
                Err(error) if error.kind() == Kind::Busy => return Err(error),
                Err(_) => self.shared.lose(n),
            }
        }
        if locks.is_empty() || (hold == Hold::Alone && (locks.len() as u32) < self.shared.quorum())
        {
            return Err(too_few(locks.len() as u32, self.shared.quorum()));
        }
        Ok(Box::new(Locks(locks)))
    }

    fn spread(&self) -> [u8; 3] {
        [
            self.shared.directories.len() as u8,
            self.shared.code.data() as u8,
            self.shared.code.parity() as u8,
        ]
    }

    fn is_whole(&self, name: &str) -> Result<bool> {
        if is_segment(name) { stripe::is_whole(&self.shared, name) } else { Ok(true) }
    }

    fn settle(&self, alone: bool) -> Result<()> {
        self.shared.look()?;
        let first = !std::mem::replace(&mut self.shared.state.lock().compared, true);
        if first {
            let compared = copies::compare(&self.shared, alone);
            if compared.is_err() {
                self.shared.state.lock().compared = false;
            }
            compared?;
        }
        Ok(())
    }

    fn confirm(&self) -> Result<()> {
        self.shared.leave_out_missed()
    }

    fn keeps(&self, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
        copies::keeps(&self.shared, name, at, bytes)
    }

    fn another_copy(&self) -> bool {
        let mut state = self.shared.state.lock();
        let later = state.readable()
            & self.shared.copies_mask()
            & !(u64::MAX >> (NODES_MAX - 1 - state.primary));
        match bits(later).next() {
            Some(n) => {
                state.primary = n;
                true
            }
            None => false,
        }
    }
}
