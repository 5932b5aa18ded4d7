//! Superblocks.

use onefold_core::{Disk, Error, Kind, Result, hex_digits};

use super::text::{field, line, pointer_text};
use crate::{
    check::{batch::read_one, places::is_superblock, rot},
    format::{
        geometry::SUPERBLOCKS,
        sealing::Sealing,
        superblock::{Found, Layout, Leftover, Root, Superblock},
    },
};

pub(super) fn show(
    disk: &dyn Disk,
    sealing: Option<&Sealing>,
    place: u32,
    out: &mut String,
) -> Result<()> {
    let Some(&at) = SUPERBLOCKS.get(place as usize) else {
        return Err(Error::new(Kind::InvalidInput, "a store has superblocks 0 and 1"));
    };
    let block = read_one(disk, at)?;
    match Superblock::open(&block, place, sealing) {
        Found::Good(superblock) => {
            line(out, format_args!("superblock {place} at block {at}: whole"));
            describe(&superblock, out);
        }
        Found::OtherVersion(version) => {
            line(out, format_args!("superblock {place} at block {at}: format version {version}"))
        }
        Found::OtherFeatures(features) => line(
            out,
            format_args!("superblock {place} at block {at}: unknown features {features:#x}"),
        ),
        Found::Damaged | Found::Sealed(_) => {
            line(out, format_args!("superblock {place} at block {at}: damaged"))
        }
        Found::Foreign => {
            line(out, format_args!("superblock {place} at block {at}: no superblock"))
        }
    }
    if !is_superblock(&block, place, sealing)
        && let Some(bit) = rot::rotten_bit(&block, |block| is_superblock(block, place, sealing))
    {
        field(out, "damage", format_args!("bit {bit} is flipped"));
    }
    Ok(())
}

fn describe(superblock: &Superblock, out: &mut String) {
    let (fixed, state) = (&superblock.fixed, &superblock.state);
    let geometry = fixed.geometry;
    field(out, "format", superblock.version());
    field(out, "store", hex_digits(fixed.id));
    field(out, "secret", "(not shown)");
    field(
        out,
        "zones",
        format_args!(
            "{} of {} blocks, data from zone {} on",
            geometry.zones,
            geometry.zone_blocks,
            geometry.first_zone()
        ),
    );
    field(out, "size", format_args!("{} blocks of 4096 bytes", geometry.blocks()));
    field(
        out,
        "zone list",
        format_args!(
            "{} pages from block {} on, {} zones",
            geometry.list_pages,
            geometry.list_page(0)[0],
            geometry.list_slots()
        ),
    );
    field(out, "fingerprint", fixed.algorithm);
    field(out, "verify", if fixed.compares_bytes() { "bytes" } else { "hash" });
    field(out, "space", if fixed.grow { "taken zone by zone" } else { "taken at once" });
    field(out, "leftover", if fixed.leftover == Leftover::Log { "log" } else { "table" });
    field(out, "scheme", format!("{:?}", fixed.scheme).to_lowercase());
    field(out, "layout", if fixed.layout == Layout::Run { "run" } else { "split" });
    field(out, "sequence", state.sequence);
    field(out, "epoch", state.epoch);
    field(out, "shut down", if state.clean { "cleanly" } else { "no" });
    field(
        out,
        "windows",
        format_args!(
            "committed {}, durable {}, last given {}",
            state.committed, state.durable, state.last_window
        ),
    );
    field(
        out,
        "volumes",
        format_args!("{}, the next one gets number {}", state.volumes, state.next_volume),
    );
    field(out, "discards", state.discards);
    field(
        out,
        "used",
        format_args!(
            "{} blocks, {} of them data, in zones below {}",
            state.used_blocks, state.live_blocks, state.high_water
        ),
    );
    field(out, "mapped", format_args!("{} logical blocks", state.mapped_blocks));
    if state.packs > 0 {
        let text = format_args!("{}, with {} logical blocks", state.packs, state.fragments);
        field(out, "packs", text);
    }
    field(out, "generation", format_args!("{} is the next zone's", state.next_generation));
    let roots = [
        ("references", state.references),
        ("fingerprints", state.fingerprints),
        ("zone table", state.zones),
        ("catalogue", state.catalogue),
        ("pending", state.pending),
    ];
    for (name, root) in roots {
        field(out, name, root_text(&root));
    }
    for cut in &state.cuts {
        field(
            out,
            "cut",
            format_args!(
                "epoch {} ends with window {}, windows go on at {}",
                cut.epoch, cut.window, cut.resume
            ),
        );
    }
}

/// A root for people.
pub(super) fn root_text(root: &Root) -> String {
    match root.height {
        0 => "empty".to_owned(),
        height => format!("height {height}, {}", pointer_text(&root.page)),
    }
}
