//! Zones, and the zone list.

use onefold_core::{Error, Kind, Pba, Result, ZoneId};

use super::{
    text::{field, line},
    view::View,
};
use crate::{
    check::{batch::read_one, places, rot},
    format::{
        geometry::Geometry,
        page::{ReferenceEntry, header},
        zone_bitmap::ZoneBitmap,
        zone_list::Page,
    },
};

/// Blocks of a zone in one line.
const WIDTH: usize = 64;

/// Page and place of the zone list that a block is.
pub(super) fn list_place(geometry: &Geometry, pba: Pba) -> Option<(u32, usize)> {
    (0..geometry.list_pages)
        .find_map(|page| Some((page, geometry.list_page(page).iter().position(|&at| at == pba)?)))
}

pub(super) fn show_list(view: &View<'_>, out: &mut String) {
    for page in 0..view.superblock.fixed.geometry.list_pages {
        for place in 0..2 {
            show_list_copy(view, page, place, out);
        }
    }
}

/// One copy of one page.
pub(super) fn show_list_copy(view: &View<'_>, number: u32, place: usize, out: &mut String) {
    let at = view.superblock.fixed.geometry.list_page(number)[place];
    let block = match read_one(view.disk, at) {
        Ok(block) => block,
        Err(e) => {
            return line(
                out,
                format_args!("zone list page {number}, block {at}: can't be read: {e}"),
            );
        }
    };
    let decode = |block: &onefold_core::Block| Page::decode(view.identity, block, number, at.0);
    let Some(page) = decode(&block) else {
        line(out, format_args!("zone list page {number}, block {at}: damaged"));
        if let Some(bit) = rot::rotten_bit(&block, |block| decode(block).is_some()) {
            field(out, "damage", format_args!("bit {bit} is flipped"));
        }
        return;
    };
    let zones = page.entries.iter().flatten().count();
    line(
        out,
        format_args!(
            "zone list page {number}, block {at}: whole, version {}, durable {}, {zones} zones",
            page.sequence, page.durable
        ),
    );
    for entry in page.entries.iter().flatten() {
        let state = entry.carriers.map_or_else(
            || "open".to_owned(),
            |carriers| format!("full, {} carriers", carriers.count()),
        );
        field(
            out,
            &format!("zone {}", entry.zone),
            format_args!("generation {}, {state}", entry.generation),
        );
    }
}

/// A zone's bitmap, with what uses each block.
pub(super) fn show(view: &View<'_>, zone: ZoneId, out: &mut String) -> Result<()> {
    let geometry = view.superblock.fixed.geometry;
    if zone.0 >= geometry.zones {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("there is no zone {zone}: the store has {}", geometry.zones),
        ));
    }
    let start = geometry.start_of(zone);
    line(out, format_args!("zone {zone}: blocks {start}..{}", start.plus(geometry.zone_blocks)));
    if zone < geometry.first_zone() {
        field(out, "purpose", "superblocks and zone list");
        return Ok(());
    }
    if !geometry.has_zone(zone) {
        field(out, "purpose", "zone list, which moved here when the store grew");
        return Ok(());
    }
    if zone.0 >= view.superblock.state.high_water {
        field(out, "state", "never used");
    }
    let listed = places::listed(view.disk, view.identity, view.superblock);
    for entry in listed.iter().filter(|entry| entry.zone == zone) {
        let state = entry.carriers.map_or_else(
            || "open".to_owned(),
            |carriers| format!("full, {} carriers", carriers.count()),
        );
        field(out, "listed", format_args!("generation {}, {state}", entry.generation));
    }
    let used = match view.zone(zone.0) {
        Ok(entry) => entry.used,
        Err(e) => {
            field(out, "zone table", e);
            return Ok(());
        }
    };
    field(out, "in use", format_args!("{} of {} blocks", used.count(), geometry.zone_blocks));
    let marks: Vec<char> =
        (0..geometry.zone_blocks).map(|n| mark(view, start.plus(n), n as usize, &used)).collect();
    for (n, marks) in marks.chunks(WIDTH).enumerate() {
        field(out, &start.plus((n * WIDTH) as u64).to_string(), marks.iter().collect::<String>());
    }
    field(out, "legend", "r raw data, c carrier, t table page, ? in use otherwise, . free");
    Ok(())
}

fn mark(view: &View<'_>, pba: Pba, n: usize, used: &ZoneBitmap) -> char {
    if !used.get(n) {
        return '.';
    }
    match view.references(pba) {
        Ok(ReferenceEntry { references: 1.., carried: true }) => 'c',
        Ok(ReferenceEntry { references: 1.., carried: false }) => 'r',
        _ => {
            let page = read_one(view.disk, pba)
                .ok()
                .and_then(|mut block| header(view.identity, pba, &mut block.0));
            if page.is_some_and(|(_, pointer)| pointer.address == pba) { 't' } else { '?' }
        }
    }
}
