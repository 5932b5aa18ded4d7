//! Several directories as one, as the trait [`Files`] has it.

use std::sync::Arc;

use onefold_core::{Error, File, Files, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

use super::{
    code::Code,
    copies,
    fence::Fences,
    label::{Absent, CURSOR, NODE, NODES_MAX, NodeLabel, View},
    locking,
    redundancy::Redundancy,
    shared::{FoundCopy, Leveling, Shared, State, bits, read_label},
    stripe,
};
use crate::{format::names::is_segment, settings::Settings};

/// The nodes of an archive.
pub struct Nodes {
    shared: Arc<Shared>,
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
    /// Only who names the nodes by a list with the archive's [seal](crate::seal) changes it.
    pub listed: bool,
}

impl Spread {
    /// Whether an archive can spread so.
    ///
    /// # Errors
    /// `InvalidInput` for a code without parity, and for too few or too many nodes.
    pub fn check(&self) -> Result<()> {
        let Spread { n, k, ids, .. } = self;
        let (nodes, parity) = (ids.len(), Code::new(*n, *k)?.parity());
        let copies = 2 * parity + 1;
        if parity == 0 || nodes < copies.max(*n) || nodes > NODES_MAX {
            let why = format!(
                "the code {n},{k} needs parity, and from {} to {NODES_MAX} nodes: {copies} for the log alone; these are {nodes}",
                copies.max(*n)
            );
            return Err(Error::new(Kind::InvalidInput, why));
        }
        Ok(())
    }
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
        let Spread { n, k, ids, listed } = spread;
        let nodes = directories.len();
        spread.check()?;
        if ids.len() != nodes {
            let why = format!("{} ids for {nodes} nodes", ids.len());
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
        let members = u64::MAX >> (NODES_MAX - nodes);
        let view = View { epoch: 1, members, ids: ids.clone(), listed: *listed };
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
        Nodes::open_far(directories, 0, degraded)
    }

    /// The same where some are on other hosts: `far` has a bit for each. Whoever has a node has the archive's secret
    /// in its label, and may write any other one. A label from there by which more nodes would be lost than may be
    /// is left out, with its node, where all others say that this is not so.
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub fn open_far(
        directories: Vec<Option<Arc<dyn Files>>>,
        far: u64,
        degraded: bool,
    ) -> Result<Nodes> {
        open(directories, far, degraded, &Settings::default())
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
        open(directories, 0, degraded, settings)
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

/// Opens the nodes, of which those of `far` are on other hosts.
fn open(
    directories: Vec<Option<Arc<dyn Files>>>,
    far: u64,
    degraded: bool,
    settings: &Settings,
) -> Result<Nodes> {
    let labels: Vec<_> = directories.iter().map(|files| read_label(files.as_deref())).collect();
    // The archive of most of them.
    let is_alike = |one: &NodeLabel, other: &NodeLabel| {
        let spread = |label: &NodeLabel| (label.n, label.k, label.view.ids.len());
        one.archive == other.archive && one.secret == other.secret && spread(one) == spread(other)
    };
    let rank = |&(n, label): &(usize, &NodeLabel)| {
        let count = labels.iter().flatten().filter(|other| is_alike(label, other)).count();
        (count, far >> n & 1 == 0, label.view.epoch)
    };
    let known = labels.iter().enumerate().filter_map(|(n, label)| Some((n, label.as_ref().ok()?)));
    let Some(first) = known.max_by_key(rank).map(|(_, label)| label.clone()) else {
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
        far,
        code: Code::new(usize::from(first.n), usize::from(first.k))?,
        identity: first.identity(),
        secret: first.secret,
        degraded,
        fences: Mutex::new(Fences::default()),
        looking: Mutex::default(),
        state: Mutex::new(State {
            view: first.view,
            here: 0,
            missed: 0,
            ahead: 0,
            primary: 0,
            leveling: Leveling::NotCompared,
            copies: Vec::new(),
            read_from: 0,
            absent: Vec::new(),
            listed: false,
            sealed: false,
        }),
        settings: settings.clone(),
    };
    shared.look()?;
    Ok(Nodes { shared: Arc::new(shared) })
}

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
        locking::lock(&self.shared, name, hold, wait)
    }
}

impl Redundancy for Nodes {
    fn create_wide(&self, name: &str, data: u8) -> Result<Arc<dyn File>> {
        if is_segment(name) {
            stripe::create(&self.shared, name, data)
        } else {
            copies::create(&self.shared, name)
        }
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

    fn begin(&self, alone: bool) -> Result<()> {
        self.shared.look()?;
        if self.shared.state.lock().leveling == Leveling::NotCompared {
            copies::compare(&self.shared)?;
            self.shared.state.lock().leveling = Leveling::Compared;
        } else if alone && self.shared.state.lock().leveling == Leveling::Compared {
            copies::level(&self.shared)?;
            self.shared.state.lock().leveling = Leveling::Level;
        }
        Ok(())
    }

    fn confirm(&self) -> Result<()> {
        self.shared.leave_out_missed()
    }

    fn keeps(&self, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
        copies::keeps(&self.shared, name, at, bytes)
    }

    fn reads_back(&self, _: &dyn File, name: &str, at: u64, bytes: &[u8]) -> Result<bool> {
        copies::reads_back(&self.shared, name, at, bytes)
    }

    fn leave_damaged_copy(&self) -> bool {
        self.shared.lose_primary()
    }

    fn another_copy(&self) -> bool {
        let state = &mut *self.shared.state.lock();
        let (readable, from) = (state.readable(), state.read_from);
        if let Some(copy) = state.copies.iter_mut().find(|copy| copy.node == from) {
            copy.is_damaged = true;
        }
        let is_next = |copy: &&FoundCopy| !copy.is_damaged && readable >> copy.node & 1 == 1;
        let Some(next) = state.copies.iter().find(is_next) else { return false };
        (state.primary, state.read_from) = (next.node, next.node);
        true
    }
}
