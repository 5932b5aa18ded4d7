//! Who may change an archive on several nodes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use onefold_archive::{Archive, Format, Ingest, Nodes, Rule, Settings, Spread};
use onefold_core::{Files, Hold, Kind, Result};
use onefold_testbed::{Rng, VirtualFiles, files::Layout};

const OWN: &[u8] = b"the owner's list";

struct Desk {
    nodes: Vec<VirtualFiles>,
    broken: Option<Rule>,
}

impl Desk {
    /// An archive on three nodes; an older one knows nothing of seals.
    fn new(older: bool, broken: Option<Rule>) -> Desk {
        Desk::of(3, older, broken)
    }

    fn of(count: u8, older: bool, broken: Option<Rule>) -> Desk {
        let nodes = (0..u64::from(count))
            .map(|n| VirtualFiles::new(Layout::default(), Rng::new(n)))
            .collect();
        let desk = Desk { nodes, broken };
        let ids = (0..count).map(|n| [n; 16]).collect();
        let spread = Spread { n: 3, k: 2, ids, listed: !older };
        let format = Format { reserve_bytes: 0, ..Format::new([7; 16], [8; 32], [9; 16]) };
        let made =
            Nodes::create(desk.files(count.into()), &spread, format.id, format.secret).unwrap();
        Archive::create_on_nodes(&made, &format).unwrap();
        desk
    }

    fn files(&self, count: usize) -> Vec<Arc<dyn Files>> {
        let file = |node: &VirtualFiles| Arc::new(node.clone()) as Arc<dyn Files>;
        self.nodes.iter().take(count).map(file).collect()
    }

    fn settings(&self) -> Settings {
        Settings { broken: self.broken, ..Settings::default() }
    }

    /// Opens `there` of the nodes by a list, and creates a volume.
    fn change(
        &self,
        there: usize,
        name: &str,
        list: &[u8],
        seal: Option<[u8; 32]>,
    ) -> Result<bool> {
        let mut files: Vec<_> = self.files(there).into_iter().map(Some).collect();
        files.resize(3, None);
        let nodes = Nodes::open_with(files, false, &self.settings())?;
        let sealed = nodes.may_change(list, seal.as_ref())?;
        let archive = Archive::open_on_nodes(Arc::new(nodes), true, self.settings())?;
        archive.create_volume(name, 4, 1_000)?;
        Ok(sealed)
    }

    fn seal(&self) -> [u8; 32] {
        onefold_archive::seal(&[7; 16], &[8; 32], OWN)
    }
}

#[test]
fn rule_02_a_list_without_the_archives_seal_changes_nothing() {
    let refused = |broken| {
        let desk = Desk::new(false, broken);
        assert!(desk.change(3, "a", OWN, Some(desk.seal())).unwrap());
        let strangers = [
            desk.change(3, "b", OWN, None),
            desk.change(2, "c", b"another list", Some(desk.seal())),
            desk.change(3, "d", OWN, Some([0; 32])),
            desk.change(
                3,
                "e",
                b"other",
                Some(onefold_archive::seal(&[7; 16], &[0; 32], b"other")),
            ),
        ];
        assert!(desk.change(3, "f", OWN, Some(desk.seal())).unwrap());
        strangers.iter().all(|done| matches!(done, Err(error) if error.kind() == Kind::Denied))
    };
    assert!(refused(None));
    assert!(!refused(Some(Rule::ListHasItsSeal)));
}

#[test]
fn rule_02_an_older_archive_asks_for_seals_from_its_first_sealed_change_with_all_nodes_on() {
    let desk = Desk::new(true, None);
    assert!(!desk.change(3, "a", OWN, None).unwrap());
    assert_eq!(desk.change(3, "b", OWN, Some([0; 32])).unwrap_err().kind(), Kind::Denied);
    assert!(desk.change(3, "c", OWN, Some(desk.seal())).unwrap());
    assert_eq!(desk.change(3, "d", OWN, None).unwrap_err().kind(), Kind::Denied);
    assert!(desk.change(2, "e", OWN, Some(desk.seal())).unwrap());
    assert_eq!(desk.change(3, "f", OWN, None).unwrap_err().kind(), Kind::Denied);
}

#[test]
fn rule_02_a_crash_while_an_older_archive_learns_of_seals_leaves_it_open_to_its_owner() {
    for crash in 1..60 {
        let desk = Desk::new(true, None);
        desk.nodes[crash as usize % 3].arm_crash(crash / 3 + 1);
        let _ = desk.change(3, "a", OWN, Some(desk.seal()));
        desk.nodes.iter().for_each(VirtualFiles::disarm);
        desk.nodes.iter().for_each(VirtualFiles::power_cycle);
        assert!(desk.change(3, "b", OWN, Some(desk.seal())).unwrap(), "crash {crash}");
        assert_eq!(desk.change(3, "c", OWN, None).unwrap_err().kind(), Kind::Denied);
    }
}

#[test]
fn who_stores_has_the_lock_of_each_node_that_it_writes_to() {
    // Nodes 3 and 4 have no copy of the log. No seed has connections that end one by one.
    let locked = |broken| {
        let desk = Desk::of(5, false, broken);
        let files = desk.files(5).into_iter().map(Some).collect();
        let nodes = Nodes::open_with(files, false, &desk.settings()).unwrap();
        let archive = Archive::open_on_nodes(Arc::new(nodes), true, desk.settings()).unwrap();
        let archive = Arc::new(archive);
        let held = Ingest::begin(&archive, false, false).unwrap();
        let is_locked = |node: &VirtualFiles| node.lock("lock-writer", Hold::Alone, false).is_err();
        let locked: Vec<bool> = desk.nodes.iter().map(is_locked).collect();
        drop(held);
        assert!(!desk.nodes.iter().any(is_locked));
        locked
    };
    assert_eq!(locked(None), [true; 5]);
    assert_eq!(locked(Some(Rule::EveryNodeLocked)), [true, true, true, false, false]);
}
