//! Table pages and their entries.

use onefold_core::{Block, Fingerprint, Pba, hex_digits};

use super::text::{field, line, pointer_text};
use crate::{
    check::{report::Named, walk::children},
    format::{
        catalogue::{Discard, MapKind, Volume},
        page::{self, Form, MapEntry, PageId, Pointer, ReferenceEntry, Table, ZoneEntry},
        share::Share,
    },
    index::paged,
};

/// A map entry for people.
pub(super) fn map_entry_text(entry: MapEntry) -> String {
    match entry {
        MapEntry::Hole => "hole".to_owned(),
        MapEntry::Zero => "zeroes".to_owned(),
        MapEntry::Lost => "lost: an error to read".to_owned(),
        MapEntry::Block { pba, form, prefix } => {
            format!("block {pba}, {}, fingerprint {}…", form_text(form), prefix_text(prefix))
        }
    }
}

/// The first eight bytes of a fingerprint, in the order in which the whole is shown.
fn prefix_text(prefix: u64) -> String {
    hex_digits(prefix.to_le_bytes())
}

/// How a block holds what an address names.
fn form_text(form: Form) -> String {
    match form {
        Form::Raw => kind(false).to_owned(),
        Form::Carried => kind(true).to_owned(),
        Form::Packed(fragment) => format!("fragment {fragment} of a pack"),
    }
}

/// How a block lies; what is compressed may be in a pack as well.
pub(super) fn kind(carried: bool) -> &'static str {
    if carried { "in a carrier" } else { "raw" }
}

/// An entry of references for people.
pub(super) fn references_text(entry: &ReferenceEntry) -> String {
    match entry.references {
        0 => "no references".to_owned(),
        ReferenceEntry::SATURATED => format!("saturated references, {}", kind(entry.carried)),
        references => format!("{references} references, {}", kind(entry.carried)),
    }
}

/// Describes a page that is whole.
pub(super) fn show(id: PageId, pointer: &Pointer, current: bool, page: &Block, out: &mut String) {
    line(out, format_args!("table page: {}", Named(id)));
    field(out, "page", pointer_text(pointer));
    field(
        out,
        "current",
        if current { "yes" } else { "no: an older version, or of a tree that is gone" },
    );
    if id.level > 0 {
        let children = children(id, page);
        field(out, "children", children.len());
        for (child, pointer) in children {
            field(out, &child.index.to_string(), pointer_text(&pointer));
        }
        return;
    }
    if id.table == Table::Index {
        field(out, "entries", paged::entries(page).count());
        for entry in paged::entries(page) {
            field(out, &format!("{:09x}", entry.hash), format!("block {}", entry.pba));
        }
        return;
    }
    let first = id.index.saturating_mul(id.table.per_leaf());
    for slot in 0..id.table.per_leaf() {
        let number = first.saturating_add(slot);
        let text = match id.table {
            Table::Map => match MapEntry::get(page, slot) {
                Some(MapEntry::Hole) => continue,
                Some(entry) => map_entry_text(entry),
                None => "can't be read".to_owned(),
            },
            Table::References => match ReferenceEntry::get(page, slot) {
                entry if entry == ReferenceEntry::default() => continue,
                entry => references_text(&entry),
            },
            Table::Fingerprints => match page::fingerprint(page, slot) {
                fingerprint if fingerprint == Fingerprint::default() => continue,
                fingerprint => format!("fingerprint {fingerprint}"),
            },
            Table::Zones => match ZoneEntry::get(page, slot).used {
                used if used.count() == 0 => continue,
                used => format!("{} blocks in use", used.count()),
            },
            Table::Catalogue => match Volume::get(page, slot) {
                Some(volume) if volume.id.0 == 0 => continue,
                Some(volume) => {
                    let map = super::superblock::root_text(&volume.map);
                    format!(
                        "volume {} '{}', {} blocks, map: {map}",
                        volume.id, volume.name, volume.blocks
                    )
                }
                None => "can't be read".to_owned(),
            },
            Table::Discards => match Discard::get(page, slot) {
                Some(Discard { volume, keep, start, end, window }) => {
                    let what = if keep { "zeroes" } else { "a hole" };
                    format!(
                        "volume {volume}, blocks {start}..{end} become {what}, of window {window}"
                    )
                }
                None => continue,
            },
            Table::Shares => match Share::get(page, slot) {
                share if share == Share::default() => continue,
                Share { count, borrowers, lender } => {
                    let lender = lender.map_or(String::new(), |lender| {
                        format!(", borrows from the page at block {}", lender.address)
                    });
                    format!("{count} entries name the page, {borrowers} pages borrow{lender}")
                }
            },
            Table::Maps => match Volume::get_shared(page, slot) {
                Some(None) => continue,
                Some(Some(volume)) => {
                    let map = super::superblock::root_text(&volume.map);
                    let what = match volume.sharing.kind {
                        MapKind::Volume => "volume",
                        MapKind::Snapshot => "snapshot",
                        MapKind::Leaving => "leaving map",
                        MapKind::Receiving => "snapshot that is being received",
                    };
                    format!(
                        "{what} {} '{}', {} blocks, pages of {}, map: {map}",
                        volume.id,
                        volume.name,
                        volume.blocks,
                        volume.family()
                    )
                }
                None => "can't be read".to_owned(),
            },
            Table::Index => continue,
        };
        field(out, &number.to_string(), text);
    }
}

/// The name of a block in the store's fixed part.
pub(super) fn fixed_name(pba: Pba) -> String {
    format!("block {pba} lies in a fixed zone and holds nothing")
}
