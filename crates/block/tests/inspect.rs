//! `inspect`: every kind of block is described, damage included, and the secret never.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod damage;

use damage::*;
use onefold_backend::MemoryDisk;
use onefold_block::{
    check::{What, inspect},
    format::{carrier::Carrier, geometry::SUPERBLOCKS, page::Table},
};
use onefold_core::{Disk, Kind, Lba, Pba, ZoneId};

fn shown(disk: &MemoryDisk, what: What) -> String {
    let text = inspect(disk, &what).unwrap();
    assert!(!text.is_empty() && text.lines().all(|line| line.len() < 400), "{text}");
    // The secret is 32 bytes of 2.
    assert!(!text.contains("02020202") && !text.contains("2, 2, 2"), "{text}");
    text
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is missing:\n{text}");
    }
}

#[test]
fn superblocks_and_the_zone_list_are_shown() {
    let (disk, _) = Subject::filled().closed();
    let state = superblock(&disk).state;
    let place = (state.sequence % 2) as u32;
    let text = shown(&disk, What::Superblock(place));
    assert_says(
        &text,
        &[
            "whole",
            "blake3",
            "cleanly",
            "(not shown)",
            &format!("committed {}", state.committed),
            "640 of 16 blocks",
        ],
    );
    assert_eq!(text, shown(&disk, What::Block(SUPERBLOCKS[place as usize])));
    flip(&disk, SUPERBLOCKS[0], 4000);
    assert_says(&shown(&disk, What::Superblock(0)), &["damaged", "bit 4000 is flipped"]);
    flip(&disk, SUPERBLOCKS[0], 4000);
    assert_eq!(inspect(&*disk, &What::Superblock(2)).unwrap_err().kind(), Kind::InvalidInput);

    let mut subject = Subject::filled();
    // Until a zone is full, and the list says so.
    for n in 0..400 {
        subject.write("volume 7", n, 10_000 + n);
        subject.engine.flush().unwrap();
    }
    let killed = subject.killed().0;
    let list = superblock(&killed).fixed.geometry.list_page(0);
    assert_says(
        &shown(&killed, What::ZoneList),
        &["zone list page 0", "whole", "generation", "carriers", "not shut down cleanly"],
    );
    flip(&killed, list[1], 40);
    assert_says(&shown(&killed, What::Block(list[1])), &["damaged", "bit 40 is flipped"]);
}

#[test]
fn table_pages_of_every_kind_are_shown() {
    let disk = Subject::filled().with_pending_discards().disk;
    for (table, volume, leaf_says) in [
        (Table::Map, 1, "fingerprint"),
        (Table::References, 0, "references"),
        (Table::Fingerprints, 0, "fingerprint"),
        (Table::Zones, 0, "blocks in use"),
        (Table::Catalogue, 0, "volume 1 'volume 0'"),
        (Table::Discards, 0, "become a hole"),
    ] {
        let all = pages(&disk, table, volume, &root(&disk, table, volume));
        let inner = all.iter().find(|page| page.0.level > 0);
        let leaf = all.iter().find(|page| page.0.level == 0).unwrap();
        let text = shown(&disk, What::Block(leaf.1.address));
        assert_says(&text, &["table page", "leaf 0", "in use", "current          yes", leaf_says]);
        if let Some(inner) = inner {
            let text = shown(&disk, What::Block(inner.1.address));
            assert_says(
                &text,
                &[
                    "of level 1",
                    "children",
                    "current          yes",
                    &format!("block {}", leaf.1.address),
                ],
            );
        }
    }
}

#[test]
fn the_index_on_disk_is_shown() {
    let (disk, _) = Subject::with_index().closed();
    let all = pages(&disk, Table::Index, 0, &root(&disk, Table::Index, 0));
    assert_says(
        &shown(&disk, What::Block(all[0].1.address)),
        &["fingerprint index", "of level 1", "children"],
    );
    assert_says(
        &shown(&disk, What::Block(all[1].1.address)),
        &["fingerprint index, leaf 0", "entries", "current          yes"],
    );
}

#[test]
fn carriers_addresses_zones_and_data_are_shown() {
    let (disk, model) = Subject::filled().killed();
    let superblock = superblock(&disk);
    let identity = identity(&superblock);
    let mut seen = [false; 3];
    for at in (0..disk.blocks()).map(Pba).filter(|&at| superblock.fixed.geometry.holds(at)) {
        let text = inspect(&*disk, &What::Block(at)).unwrap();
        if Carrier::proven(&identity, &get(&disk, at), at).is_some() {
            assert_says(&text, &["carrier: whole", "records", "generation", "window"]);
            seen[0] |= text.contains("in no checkpoint");
            seen[1] |= text.contains("Create");
            seen[2] |= text.contains("carries          a block with fingerprint");
        }
    }
    assert_eq!(seen, [true; 3]);

    let (disk, _) = Subject::filled().closed();
    let ((name, lba), _) = model.iter().next().unwrap();
    let text = shown(&disk, What::Address(name.clone(), Lba(*lba)));
    assert_says(&text, &["page", "entry", "physical block", "references", "in use", "fingerprint"]);
    let text = shown(&disk, What::Address("volume 9".into(), Lba(5)));
    assert_says(&text, &["entry            hole"]);
    assert_says(
        &shown(&disk, What::Volume("volume 0".into())),
        &["2000 blocks", "blocks with data", "0 of them damaged"],
    );
    assert_eq!(inspect(&*disk, &What::Volume("none".into())).unwrap_err().kind(), Kind::NotFound);

    let zones: String = (0..ZONES).map(|zone| shown(&disk, What::Zone(ZoneId(zone)))).collect();
    assert_says(&zones, &["superblocks and zone list", "never used", "legend", "cc", "r", "tt"]);
    assert!(
        !zones.contains('?')
            || zones.lines().all(|line| !line.contains('?') || line.contains("legend"))
    );
    assert!(inspect(&*disk, &What::Zone(ZoneId(ZONES))).is_err());
    assert!(inspect(&*disk, &What::Block(Pba(1 << 50))).is_err());
    assert_says(&shown(&disk, What::Block(Pba(3))), &["lies in a fixed zone"]);
    assert_says(&shown(&disk, What::Physical(Pba(300))), &["physical block 300", "zone table"]);

    // Damage on the way is part of the answer.
    let top = root(&disk, Table::Map, 1).page.address;
    flip(&disk, top, 2000);
    assert_says(
        &shown(&disk, What::Address("volume 0".into(), Lba(1))),
        &["damage", "can't be read"],
    );
}
