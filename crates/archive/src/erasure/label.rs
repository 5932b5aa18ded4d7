//! A node's label: the archive and the number of the node, and the nodes that were current when it
//! was written. It has two places of 4,096 bytes, written by turns.
//!
//! A node that misses a write is left out by the next labels: the labels of all others name a
//! higher epoch and the members without it. A new label is written twice to each member, *proposed*
//! first and *settled* when all have it. So a label that is settled anywhere was written to all its
//! members, and a member that shows an older one is an old copy. A label that is nowhere settled
//! may not have reached every member, and nothing was written since.

use onefold_core::{Error, File, Files, Kind, Result};

use crate::format::{
    Identity,
    bytes::{Reader, Writer, corrupt},
};

/// The file.
pub(crate) const NODE: &str = "node";

/// The file that tells how far a directory is filled that is no node yet.
pub(crate) const CURSOR: &str = "rebuild";

/// Nodes of an archive at most.
pub(crate) const NODES_MAX: usize = 64;

const PLACE_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"ONEFNODE";

const VERSION: u32 = 1;

/// The fields of a node's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLabel {
    /// The archive's id.
    pub archive: [u8; 16],
    /// The archive's secret, which keys checksums.
    pub secret: [u8; 32],
    /// The node's number.
    pub number: u8,
    /// Columns of a stripe.
    pub n: u8,
    /// Columns of data.
    pub k: u8,
    /// The nodes that are current.
    pub view: View,
    /// All members have this view.
    pub settled: bool,
}

/// The nodes that are current, and the epoch since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Grows whenever a node leaves or comes.
    pub epoch: u64,
    /// A bit for each node that missed nothing.
    pub members: u64,
    /// The random id of each node.
    pub ids: Vec<[u8; 16]>,
    /// Only who names the nodes by a list with the archive's [seal](crate::seal) changes it.
    pub listed: bool,
}

/// Why a directory does not count as a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Nothing is mounted, or it can't be read.
    Gone(String),
    /// The directory has no label that is whole and that this program knows.
    Unlabelled,
    /// The label names another archive, or another number.
    Foreign,
    /// The node missed changes.
    Outdated,
    /// By the label of this node, which is on another host, more nodes would be lost than may be; by those of all
    /// others that is not so.
    Doubted,
    /// Its copy of the log, on another host, has changes that no other copy has. Its host has forged them, or the
    /// copies on this host are old ones.
    Ahead,
}

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Absent::Gone(why) => f.write_str(why),
            Absent::Unlabelled => f.write_str("it has no label of a node"),
            Absent::Foreign => f.write_str("it is another node"),
            Absent::Outdated => f.write_str("it missed changes"),
            Absent::Doubted => f.write_str("its label contradicts those of the other nodes"),
            Absent::Ahead => f.write_str(
                "its copy of the log has changes that no copy here has: its host is not to be trusted, or the copies \
                 here are old ones",
            ),
        }
    }
}

impl NodeLabel {
    /// The identity for checksums.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::new(self.archive, &self.secret)
    }

    fn generation(&self) -> u64 {
        self.view.epoch * 2 + u64::from(self.settled)
    }

    /// The bytes of a place.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.raw(MAGIC).u32(VERSION).raw(&self.archive).raw(&self.secret);
        w.u8(self.number)
            .u8(self.view.ids.len() as u8)
            .u8(self.n)
            .u8(self.k)
            .u8(u8::from(self.settled))
            .u8(u8::from(self.view.listed))
            .raw(&[0; 2]);
        w.u64(self.view.epoch).u64(self.view.members);
        self.view.ids.iter().for_each(|id| {
            w.raw(id);
        });
        w.0.resize(PLACE_BYTES - 8, 0);
        let checksum = self.identity().checksum(&w.0);
        w.u64(checksum);
        w.0
    }

    /// Decodes the bytes of one place; `None` when they are no label.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`.
    pub fn decode(bytes: &[u8]) -> Result<Option<NodeLabel>> {
        if bytes.len() != PLACE_BYTES || !bytes.starts_with(MAGIC) {
            return Ok(None);
        }
        let mut r = Reader(&bytes[8..], None);
        let version = r.u32()?;
        if version != VERSION {
            return Err(Error::new(
                Kind::Unsupported,
                format!("the node has format {version}; this program knows {VERSION}"),
            ));
        }
        let (archive, secret) = (r.array()?, r.array()?);
        if Identity::new(archive, &secret).checksum(&bytes[..PLACE_BYTES - 8]).to_le_bytes()
            != bytes[PLACE_BYTES - 8..]
        {
            return Err(corrupt("the label of a node fails its checksum"));
        }
        let (number, nodes, n, k) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        let (settled, listed) = (r.u8()? == 1, r.u8()? == 1);
        r.take(2)?;
        let (epoch, members) = (r.counter()?, r.u64()?);
        // Each copy of the log has a node.
        let is_spread = |copies: u32| usize::from(nodes) <= NODES_MAX && copies <= nodes.into();
        if number >= nodes || n > nodes || k == 0 || k > n || !is_spread(2 * u32::from(n - k) + 1) {
            return Err(corrupt("the label of a node can't be true"));
        }
        let ids = (0..nodes).map(|_| r.array()).collect::<Result<_>>()?;
        Ok(Some(NodeLabel {
            archive,
            secret,
            number,
            n,
            k,
            view: View { epoch, members, ids, listed },
            settled,
        }))
    }

    /// Reads the label of a directory.
    pub(crate) fn read(files: &dyn Files) -> std::result::Result<NodeLabel, Absent> {
        let gone = |error: Error| match error.kind() {
            Kind::NotFound => Absent::Unlabelled,
            _ => Absent::Gone(error.to_string()),
        };
        let file = files.open(NODE).map_err(gone)?;
        NodeLabel::newest(&*file).map_err(gone)?.map(|(_, label)| label).ok_or(Absent::Unlabelled)
    }

    /// The newest label that is whole, and its place.
    fn newest(file: &dyn File) -> Result<Option<(usize, NodeLabel)>> {
        let mut bytes = vec![0; 2 * PLACE_BYTES];
        let n = file.read_at(0, &mut bytes)?;
        let place = |at: usize| {
            NodeLabel::decode(
                bytes[..n].get(at * PLACE_BYTES..(at + 1) * PLACE_BYTES).unwrap_or_default(),
            )
            .ok()
            .flatten()
        };
        let found = [0, 1].into_iter().filter_map(|at| Some((at, place(at)?)));
        Ok(found.max_by_key(|(_, label)| label.generation()))
    }

    /// Writes the label over the older of the two places, so that the newest one is never torn. A
    /// label that is there already is only synced. Durable on return.
    pub(super) fn write(&self, files: &dyn Files) -> Result<()> {
        let file = match files.open(NODE) {
            Err(error) if error.kind() == Kind::NotFound => files.create(NODE)?,
            opened => opened?,
        };
        let (newest, known) =
            NodeLabel::newest(&*file)?.map_or((1, None), |(place, label)| (place, Some(label)));
        if known.is_some_and(|known| {
            known.view == self.view && known.number == self.number && known.settled >= self.settled
        }) {
            // Its writer may have been killed before it synced the label or its name.
            file.sync()?;
            return files.sync_names();
        }
        file.write_at((1 - newest as u64) * PLACE_BYTES as u64, &self.encode())?;
        file.sync()?;
        files.sync_names()
    }
}

/// The current view by the labels that were found, and a bit for each member that has it. While
/// nobody shows it settled, members with the epoch before it count too. A view is refuted when one
/// of its members shows another view of the same epoch. `None` without labels, and when all views
/// are refuted.
pub(super) fn current(found: &[Option<NodeLabel>]) -> Option<(View, u64)> {
    let mut views: Vec<&NodeLabel> = found.iter().flatten().collect();
    views.sort_by_key(|label| std::cmp::Reverse(label.generation()));
    let refuted = |label: &NodeLabel| {
        let other = |n: usize| {
            found[n].as_ref().is_some_and(|other| {
                other.view.epoch == label.view.epoch && other.view != label.view
            })
        };
        (0..found.len()).any(|n| label.view.members >> n & 1 == 1 && other(n))
    };
    let view = &views.into_iter().find(|label| !refuted(label))?.view;
    let settled = found.iter().flatten().any(|label| label.settled && label.view == *view);
    let mut here = 0;
    for (n, label) in found.iter().enumerate() {
        let Some(label) = label else { continue };
        let member = view.members >> n & 1 == 1 && view.ids.get(n) == label.view.ids.get(n);
        if member && (label.view == *view || (!settled && label.view.epoch + 1 == view.epoch)) {
            here |= 1 << n;
        }
    }
    Some((view.clone(), here))
}

/// Takes back the views that are nowhere settled and that only labels of the `suspects` show, unless more of them do
/// than may lie: one host can propose to go on without another's node. Nothing was written under such a view, so what
/// it leaves out counts as before.
pub(super) fn take_back_proposals(found: &mut [Option<NodeLabel>], suspects: u64, parity: usize) {
    let shown: Vec<Option<NodeLabel>> = found.to_vec();
    for (n, slot) in found.iter_mut().enumerate() {
        let Some(label) = slot.as_mut().filter(|label| suspects >> n & 1 == 1 && !label.settled)
        else {
            continue;
        };
        let alike = |other: &(usize, &NodeLabel)| other.1.view == label.view;
        let known = || shown.iter().enumerate().filter_map(|(n, other)| Some((n, other.as_ref()?)));
        let is_believed = known().filter(alike).any(|(n, _)| suspects >> n & 1 == 0)
            || known().filter(alike).count() > parity;
        let before = known().map(|(_, other)| other).filter(|other| {
            other.view.epoch + 1 == label.view.epoch
                && other.view.ids.get(n) == label.view.ids.get(n)
        });
        if !is_believed && let Some(before) = before.max_by_key(|other| other.settled) {
            label.view = before.view.clone();
        }
    }
}

/// Labels of most nodes that are doubted at once.
const DOUBTED_MAX: u32 = 2;

/// Of the `suspects`, which are on other hosts, those whose labels can't be true together with the others: with them
/// there is no current view, or one under which more than `parity` nodes are lost. Each host of a node knows the
/// archive's secret, so it can write any label that it wants, and the damage must not be more than a lost node.
///
/// Where the labels without them make no such view either, nobody is doubted: then more is lost than may be, and
/// it is not for a vote which of two states of the archive counts.
pub(super) fn doubted(found: &[Option<NodeLabel>], suspects: u64, parity: usize) -> u64 {
    let is_sound = |without: u64| {
        let rest: Vec<Option<NodeLabel>> = found
            .iter()
            .enumerate()
            .map(|(n, label)| label.clone().filter(|_| without >> n & 1 == 0))
            .collect();
        current(&rest).is_some_and(|(_, here)| here.count_ones() as usize + parity >= found.len())
    };
    let mut singles: Vec<usize> =
        (0..found.len()).filter(|&n| suspects >> n & 1 == 1 && found[n].is_some()).collect();
    if singles.is_empty() || is_sound(0) {
        return 0;
    }
    // The label that no other node has seen is doubted first.
    let generation = |&n: &usize| found[n].as_ref().map(NodeLabel::generation);
    singles.sort_by_key(|n| std::cmp::Reverse(generation(n)));
    let singles: Vec<u64> = singles.into_iter().map(|n| 1 << n).collect();
    let pairs = singles.iter().flat_map(|&one| {
        singles.iter().map(move |&other| one | other).filter(move |both| *both != one)
    });
    let most = DOUBTED_MAX.min(parity as u32);
    let mut sets = singles.iter().copied().chain(pairs).filter(|set| set.count_ones() <= most);
    sets.find(|&set| is_sound(set)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(number: u8, epoch: u64, members: u64, settled: bool) -> NodeLabel {
        let ids = (0..5).map(|n| [n; 16]).collect();
        let view = View { epoch, members, ids, listed: number == 3 };
        NodeLabel { archive: [1; 16], secret: [2; 32], number, n: 3, k: 2, view, settled }
    }

    /// A directory that counts how often names are made durable.
    struct Names(onefold_backend::Directory, std::sync::atomic::AtomicU32);

    impl Files for Names {
        fn names(&self) -> Result<Vec<String>> {
            self.0.names()
        }
        fn create(&self, name: &str) -> Result<std::sync::Arc<dyn File>> {
            self.0.create(name)
        }
        fn open(&self, name: &str) -> Result<std::sync::Arc<dyn File>> {
            self.0.open(name)
        }
        fn remove(&self, name: &str) -> Result<()> {
            self.0.remove(name)
        }
        fn sync_names(&self) -> Result<()> {
            self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.0.sync_names()
        }
        fn lock(
            &self,
            name: &str,
            hold: onefold_core::Hold,
            wait: bool,
        ) -> Result<Box<dyn onefold_core::Lock>> {
            self.0.lock(name, hold, wait)
        }
    }

    #[test]
    fn the_name_of_a_label_is_made_durable_also_when_who_wrote_it_was_killed() {
        let dir = tempfile::tempdir().unwrap();
        let files =
            Names(onefold_backend::Directory::create(&dir.path().join("node")).unwrap(), 0.into());
        // Written and synced, and its writer killed before the name was.
        let one = label(0, 5, 0b011, true);
        let file = files.create(NODE).unwrap();
        file.write_at(0, &one.encode()).unwrap();
        file.sync().unwrap();
        one.write(&files).unwrap();
        assert_eq!(files.1.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(NodeLabel::read(&files).ok(), Some(one));
    }

    fn here(found: &[Option<NodeLabel>]) -> Option<(u64, u64)> {
        current(found).map(|(view, here)| (view.epoch, here))
    }

    #[test]
    fn labels_are_read_as_they_were_written_and_damage_is_seen() {
        let label = label(3, 7, 0b10111, true);
        let bytes = label.encode();
        assert_eq!(NodeLabel::decode(&bytes).unwrap(), Some(label.clone()));
        for at in [9, 50, 70, 4000, 4090] {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert!(NodeLabel::decode(&torn).is_err(), "byte {at}");
        }
        assert_eq!(NodeLabel::decode(&[0; PLACE_BYTES]).unwrap(), None);
        for (n, k) in [(5, 2), (5, 0), (2, 3), (6, 5)] {
            let error = NodeLabel::decode(&NodeLabel { n, k, ..label.clone() }.encode());
            assert_eq!(error.unwrap_err().kind(), Kind::Corrupt, "the code {n},{k} on 5 nodes");
        }
    }

    #[test]
    fn who_missed_a_change_is_not_current() {
        // 2 was left out: its label is older.
        let settled = [
            Some(label(0, 5, 0b011, true)),
            Some(label(1, 5, 0b011, true)),
            Some(label(2, 4, 0b111, true)),
        ];
        assert_eq!(here(&settled), Some((5, 0b011)));
        // The new label reached 0 only: 1 has missed nothing yet.
        let proposed = [Some(label(0, 5, 0b011, false)), Some(label(1, 4, 0b111, true)), None];
        assert_eq!(here(&proposed), Some((5, 0b011)));
        // The new label was settled, so 1 shows an old copy.
        let old = [Some(label(0, 5, 0b011, true)), Some(label(1, 4, 0b111, true)), None];
        assert_eq!(here(&old), Some((5, 0b001)));
    }

    #[test]
    fn rule_02_no_label_of_another_host_makes_more_than_its_node_lost() {
        let all = 0b11111;
        let honest = || -> Vec<Option<NodeLabel>> {
            (0..5).map(|n| Some(label(n, 5, all, true))).map(listed).collect()
        };
        fn listed(label: Option<NodeLabel>) -> Option<NodeLabel> {
            label.map(|label| NodeLabel { view: View { listed: true, ..label.view }, ..label })
        }
        assert_eq!(doubted(&honest(), all, 1), 0);
        let mut others = View { ids: vec![[9; 16]; 5], ..label(4, 5, all, true).view };
        others.listed = true;
        let forged = [
            // Later, and all others missed it.
            label(4, 6, 0b10000, true),
            label(4, 6, 0b10001, true),
            label(4, 6, 0b10111, true),
            label(4, 7, all, true),
            label(4, 1 << 60, all, true),
            label(4, 6, 0b10001, false),
            // Another one at the same time.
            label(4, 5, 0b10001, true),
            NodeLabel { view: others, ..label(4, 5, all, true) },
        ];
        for lie in forged {
            let shown = format!("{lie:?}");
            let mut found = honest();
            found[4] = listed(Some(lie));
            let is_harmless = here(&found).is_some_and(|(_, here)| here.count_ones() >= 4);
            assert_eq!(doubted(&found, all, 1), if is_harmless { 0 } else { 1 << 4 }, "{shown}");
            // One that is here is believed, and so is one where all others may lie.
            assert_eq!(doubted(&found, 0b01111, 1) >> 4 & 1, 0, "{shown}");
            // With two that may be lost, two hosts may lie, and one may be gone.
            let mut found = honest();
            found[4] = listed(Some(label(4, 6, 0b10000, true)));
            found[1] = listed(Some(label(1, 7, 0b00010, true)));
            assert_eq!(doubted(&found, all, 2), 0b10010);
            found[1] = None;
            assert_eq!(doubted(&found, all, 2), 0b10000);
        }
        // Nodes that missed changes are no lie.
        let mut found = honest();
        found[1] = listed(Some(label(1, 4, all, true)));
        assert_eq!(doubted(&found, all, 1), 0);
    }

    #[test]
    fn rule_02_what_one_other_host_alone_proposes_leaves_nobody_out() {
        let all = 0b11111;
        let same = |number: u8, epoch: u64, members: u64, settled: bool| {
            let mut label = label(number, epoch, members, settled);
            label.view.listed = true;
            Some(label)
        };
        let honest = || (0..5).map(|n| same(n, 5, all, true)).collect::<Vec<_>>();
        let judged = |mut found: Vec<Option<NodeLabel>>, far: u64, parity: usize| {
            take_back_proposals(&mut found, far, parity);
            assert_eq!(doubted(&found, far, parity), 0);
            here(&found)
        };
        let mut found = honest();
        found[4] = same(4, 6, 0b10111, false);
        assert_eq!(judged(found.clone(), 0, 1), Some((6, 0b10111)), "a node of this host");
        assert_eq!(judged(found.clone(), all, 1), Some((5, all)));
        assert_eq!(judged(found.clone(), 1 << 4, 1), Some((5, all)));
        // Another one shows it as well: of two, one does not lie; where two may, a third one is needed.
        found[2] = same(2, 6, 0b10111, false);
        assert_eq!(judged(found.clone(), all, 1), Some((6, 0b10111)));
        assert_eq!(judged(found.clone(), all, 2), Some((5, all)));
        assert_eq!(judged(found.clone(), 1 << 4, 2), Some((6, 0b10111)));
    }

    #[test]
    fn a_proposal_that_was_overtaken_does_not_count() {
        // 0 proposed to go on without 2 and died; 1 and 2 went on without 0.
        let without_2 = Some(label(0, 5, 0b011, false));
        let without_0 = |number| Some(label(number, 5, 0b110, true));
        assert_eq!(here(&[without_2.clone(), without_0(1), without_0(2)]), Some((5, 0b110)));
        assert_eq!(here(&[without_2, without_0(1), None]), Some((5, 0b010)));
    }
}
