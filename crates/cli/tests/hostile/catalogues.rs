//! Block stores whose catalogue somebody wrote, with checksums that are right. Rule 9.

use std::{fs, os::unix::fs::FileExt, path::PathBuf, process::Command};

use onefold_block::format::{
    Identity,
    catalogue::{Discard, MapKind, VOLUME_BLOCKS_MAX, Volume},
    geometry::SUPERBLOCKS,
    page::{self, PageId, Pointer, Table},
    record::WindowNumber,
    superblock::{Found, Root, Superblock},
};
use onefold_core::{Block, Pba, VolumeId};

use crate::support::{Desk, noise};

use super::readers::bounded;

/// The file of a store.
struct Forged(PathBuf);

impl Forged {
    fn get(&self, at: Pba) -> Block {
        let mut block = Block::zeroed();
        fs::File::open(&self.0).unwrap().read_exact_at(&mut block.0, at.0 * 4096).unwrap();
        *block
    }

    fn put(&self, at: Pba, block: &Block) {
        let file = fs::File::options().write(true).open(&self.0).unwrap();
        file.write_all_at(&block.0, at.0 * 4096).unwrap();
    }

    fn superblock(&self) -> Superblock {
        let found = [0, 1].map(|place| {
            match Superblock::decode(&self.get(SUPERBLOCKS[place as usize]), place) {
                Found::Good(superblock) => Some(*superblock),
                _ => None,
            }
        });
        found.into_iter().flatten().max_by_key(|found| found.state.sequence).unwrap()
    }

    /// Changes both superblocks.
    fn change(&self, change: impl FnOnce(&mut Superblock)) {
        let mut newest = self.superblock();
        change(&mut newest);
        for (place, at) in SUPERBLOCKS.into_iter().enumerate() {
            let older = (newest.state.sequence % 2) as usize != place;
            let mut own = newest.clone();
            own.state.sequence -= u64::from(older);
            self.put(at, &own.encode(place as u32));
        }
    }

    /// Seals a page anew.
    fn seal(&self, id: PageId, pointer: Pointer, page: &mut Block) -> Pointer {
        let superblock = self.superblock();
        let fixed = &superblock.fixed;
        let own = Identity::new(fixed.id, fixed.secret, fixed.algorithm);
        let new = page::seal(&own, id, pointer.address, pointer.birth, page).unwrap();
        self.put(pointer.address, page);
        new
    }

    /// Changes the catalogue, whose entries have one leaf. Places that had none may get one.
    fn catalogue(&self, change: impl FnOnce(&mut Vec<Option<Volume>>)) {
        let state = self.superblock().state;
        let shared = state.shares_pages();
        let table = if shared { Table::Maps } else { Table::Catalogue };
        assert_eq!(state.catalogue.height, 1);
        let mut page = self.get(state.catalogue.page.address);
        let entry = |n: u64| match shared {
            true => Volume::get_shared(&page, n).unwrap(),
            false => Some(Volume::get(&page, n).unwrap()),
        };
        let mut all: Vec<Option<Volume>> = (0..u64::from(state.volumes)).map(entry).collect();
        change(&mut all);
        for (n, volume) in (0..).zip(&all) {
            match volume {
                Some(volume) if shared => volume.set_shared(&mut page, n),
                Some(volume) => volume.set(&mut page, n),
                None => Volume::clear_shared(&mut page, n),
            }
        }
        let id = PageId { table, volume: 0, level: 0, index: 0 };
        let new = self.seal(id, state.catalogue.page, &mut page);
        self.change(|superblock| {
            superblock.state.catalogue.page = new;
            superblock.state.volumes = all.len() as u32;
        });
    }
}

/// A store with two volumes, the second of which has data; and, if `shares`, a snapshot and a clone.
fn desk(shares: bool) -> (Desk, Forged) {
    let desk = Desk::new();
    desk.ok("create block s --size 64M");
    fs::write(desk.path("image"), noise(1, 1 << 20)).unwrap();
    desk.ok("volume create s one --size 8M");
    desk.ok("import s two image");
    if shares {
        desk.ok("snapshot create s two@monday");
        desk.ok("snapshot clone s two@monday three");
    }
    let file = desk.path("s");
    (desk, Forged(file))
}

/// Each verb ends within its bounds, with a sentence at most or with what it has to tell, and none of them
/// panics.
#[track_caller]
fn all_end(desk: &Desk, what: &str) {
    let copy = |from: &str, to: &str| {
        let mut command = Command::new("cp");
        command.args(["--sparse=always", from, to]).current_dir(desk.path("."));
        assert!(command.status().unwrap().success());
    };
    copy("s", "kept");
    for verb in [
        "volume list s",
        "volume list s --space",
        "volume list s --json",
        "snapshot list s --space",
        "status s",
        "status s --json",
        "check s",
        "scrub s",
        "inspect s",
        "inspect s volume two",
        "export s two out",
        "send s two@monday --output out",
        "snapshot create s two@now",
        "snapshot delete s two@monday",
        "volume create s new --size 1M",
        "volume resize s two --size 512K --force",
        "volume delete s one",
        "repair s",
    ] {
        let _ = fs::remove_file(desk.path("out"));
        let output = bounded(desk, verb).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            matches!(output.status.code(), Some(0..=3)) && !err.contains("panicked"),
            "{what}: onefold {verb}: {:?} {err}",
            output.status
        );
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(!out.chars().chain(err.chars()).any(is_control), "{what}: onefold {verb}");
        copy("kept", "s");
    }
    let served = Command::new("timeout")
        .args(["-s", "INT", "1", env!("CARGO_BIN_EXE_onefold"), "serve", "s"])
        .args(["--nbd", "unix:socket", "--control", "."])
        .current_dir(desk.path("."))
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&served.stderr).into_owned();
    assert!(!err.contains("panicked") && served.status.code().is_some(), "{what}: serve: {err}");
    copy("kept", "s");
}

/// As [`all_end`], and the store is not opened.
#[track_caller]
fn is_refused(desk: &Desk, what: &str) {
    let before = fs::read(desk.path("s")).unwrap();
    for verb in ["volume list s", "status s", "export s two out", "volume create s new --size 1M"] {
        let output = bounded(desk, verb).output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{what}: onefold {verb}: {err}");
        assert!(err.lines().count() == 1 && err.contains("damaged"), "{what}: {verb}: {err}");
    }
    let check = bounded(desk, "check s").output().unwrap();
    assert_eq!(check.status.code(), Some(1), "{what}: check");
    let after = fs::read(desk.path("s")).unwrap();
    // The claim is in block 4.
    let same = before.chunks(4096).zip(after.chunks(4096)).enumerate();
    assert!(same.into_iter().all(|(at, (a, b))| at == 4 || a == b), "{what}: it was changed");
    all_end(desk, what);
}

#[test]
fn rule_09_a_catalogue_that_no_program_made_is_refused() {
    type Change = fn(&mut Vec<Option<Volume>>);
    let plain: [(&str, Change); 6] = [
        ("one number twice", |all| all[1].as_mut().unwrap().id = VolumeId(1)),
        ("one name twice", |all| all[1].as_mut().unwrap().name = "one".into()),
        ("a number that was never given", |all| all[1].as_mut().unwrap().id = VolumeId(u32::MAX)),
        ("no number", |all| all[1].as_mut().unwrap().id = VolumeId(0)),
        ("no blocks", |all| all[0].as_mut().unwrap().blocks = 0),
        ("all that there can be, twice", |all| {
            all.iter_mut().flatten().for_each(|volume| volume.blocks = VOLUME_BLOCKS_MAX);
        }),
    ];
    for (what, change) in plain {
        let (desk, forged) = desk(false);
        forged.catalogue(change);
        is_refused(&desk, what);
    }
    // Places: one, two, two@monday, three.
    fn kind(all: &mut [Option<Volume>], kind: MapKind) -> &mut Volume {
        all.iter_mut().flatten().find(|volume| volume.sharing.kind == kind).unwrap()
    }
    let shared: [(&str, Change); 4] = [
        ("a snapshot of none", |all| kind(all, MapKind::Snapshot).sharing.parent = 0),
        ("a snapshot among receives", |all| kind(all, MapKind::Snapshot).sharing.parent = u32::MAX),
        ("more addresses than there are", |all| {
            kind(all, MapKind::Volume).sharing.mapped = Some(u64::MAX - 1);
        }),
        ("more lost than there are", |all| kind(all, MapKind::Volume).sharing.lost = u64::MAX / 2),
    ];
    for (what, change) in shared {
        let (desk, forged) = desk(true);
        forged.catalogue(change);
        is_refused(&desk, what);
    }
}

#[test]
fn rule_09_what_a_catalogue_may_say_ends_every_verb() {
    type Change = fn(&mut Vec<Option<Volume>>);
    let names: [(&str, Change); 2] = [
        ("a name like a path", |all| all[0].as_mut().unwrap().name = "../../etc/x".into()),
        ("a name like a snapshot", |all| all[0].as_mut().unwrap().name = "two@monday".into()),
    ];
    let roots: [(&str, Change); 4] = [
        ("another one's map", |all| {
            let map = all[1].as_ref().unwrap().map;
            all[0].as_mut().unwrap().map = map;
        }),
        ("a map in the superblock", |all| {
            all[1].as_mut().unwrap().map.page.address = SUPERBLOCKS[0];
        }),
        ("a map beyond the disk", |all| {
            all[1].as_mut().unwrap().map.page.address = Pba((1 << 40) - 1);
        }),
        ("a map of nine levels", |all| all[1].as_mut().unwrap().map.height = 9),
    ];
    for (what, change) in names.into_iter().chain(roots) {
        let (desk, forged) = desk(false);
        forged.catalogue(change);
        all_end(&desk, what);
    }
    fn of<'a>(all: &'a mut [Option<Volume>], name: &str) -> &'a mut Volume {
        all.iter_mut().flatten().find(|volume| volume.name == name).unwrap()
    }
    let graphs: [(&str, Change); 7] = [
        ("a snapshot of itself", |all| {
            let snapshot = of(all, "monday");
            snapshot.sharing.parent = snapshot.id.0;
        }),
        ("a snapshot of a clone of it", |all| {
            let three = of(all, "three").id.0;
            of(all, "monday").sharing.parent = three;
        }),
        ("a clone of itself", |all| {
            let three = of(all, "three");
            three.sharing.parent = three.id.0;
        }),
        ("a family of none", |all| of(all, "three").sharing.family = u32::MAX),
        ("a replica of itself", |all| {
            let three = of(all, "three");
            (three.sharing.parent, three.sharing.replica) = (three.id.0, true);
        }),
        ("a receive from itself", |all| {
            let three = of(all, "three");
            (three.sharing.parent, three.sharing.kind) = (three.id.0, MapKind::Receiving);
            (three.sharing.cursor, three.name) = (VOLUME_BLOCKS_MAX, "three@x".into());
        }),
        ("the end of time", |all| {
            let snapshot = of(all, "monday");
            (snapshot.sharing.made_ms, snapshot.sharing.moment) = (u64::MAX, WindowNumber::MAX);
        }),
    ];
    for (what, change) in graphs {
        let (desk, forged) = desk(true);
        forged.catalogue(change);
        all_end(&desk, what);
    }
}

#[test]
fn rule_09_numbers_of_a_superblock_end_every_verb() {
    type Change = fn(&mut Superblock);
    let numbers: [(&str, Change); 11] = [
        ("all mapped", |own| own.state.mapped_blocks = u64::MAX),
        ("all stored", |own| own.state.live_blocks = u64::MAX),
        ("nothing mapped", |own| own.state.mapped_blocks = 0),
        ("nothing stored", |own| own.state.live_blocks = 0),
        ("many volumes", |own| own.state.volumes = 65_536),
        ("many discards", |own| own.state.discards = 65_536),
        ("the last volume", |own| own.state.next_volume = u32::MAX),
        ("the last epoch", |own| own.state.epoch = u32::MAX),
        ("the last sequence", |own| own.state.sequence = u64::MAX),
        ("the last generation", |own| own.state.next_generation = u64::MAX),
        ("the catalogue as a map of references", |own| own.state.references = own.state.catalogue),
    ];
    for (what, change) in numbers {
        let (desk, forged) = desk(false);
        forged.change(change);
        all_end(&desk, what);
    }
}

/// Ranges that wait are more than all volumes have, in one volume that there is not.
#[test]
fn rule_09_ranges_that_wait_end_every_verb() {
    for volume in [1, 77] {
        let (desk, forged) = desk(false);
        let state = forged.superblock().state;
        // A page that nothing else needs: the last block of the store.
        let address = Pba(fs::metadata(desk.path("s")).unwrap().len() / 4096 - 1);
        let mut page = *Block::zeroed();
        let per_leaf = Table::Discards.per_leaf();
        for n in 0..per_leaf {
            let all = Discard {
                volume: VolumeId(volume),
                keep: n % 2 == 0,
                start: 0,
                end: VOLUME_BLOCKS_MAX,
                window: state.committed,
            };
            all.set(&mut page, n);
        }
        let pointer = Pointer { address, birth: state.committed, ..Pointer::default() };
        let id = PageId { table: Table::Discards, volume: 0, level: 0, index: 0 };
        let new = forged.seal(id, pointer, &mut page);
        forged.change(|own| {
            own.state.pending = Root { page: new, height: 1 };
            own.state.discards = per_leaf as u32;
        });
        all_end(&desk, &format!("ranges of volume {volume}"));
    }
}
