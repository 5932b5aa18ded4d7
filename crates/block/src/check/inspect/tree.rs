//! Volumes and addresses.

use onefold_core::{Lba, Result};

use super::{
    block,
    page::map_entry_text,
    superblock::root_text,
    text::{field, line, pointer_text},
    view::View,
};
use crate::{
    check::report::Named,
    format::{
        catalogue::Discard,
        page::{MapEntry, Table},
        record::WindowNumber,
    },
};

pub(super) fn show_volume(view: &View<'_>, name: &str, out: &mut String) -> Result<()> {
    let volume = view.volume(name)?;
    line(out, format_args!("volume '{name}'"));
    field(out, "number", volume.id);
    field(out, "size", format_args!("{} blocks of 4096 bytes", volume.blocks));
    field(out, "map", root_text(&volume.map));
    let steps = view.walk(Table::Map, volume.family(), &volume.map, None);
    let (mut data, mut zeroes, mut lost, mut damaged) = (0u64, 0u64, 0u64, 0u64);
    for step in &steps {
        match &step.page {
            Ok(page) if step.id.level == 0 => {
                for slot in 0..Table::Map.per_leaf() {
                    match MapEntry::get(page, slot) {
                        Some(MapEntry::Block { .. }) => data += 1,
                        Some(MapEntry::Zero) => zeroes += 1,
                        Some(MapEntry::Lost) => lost += 1,
                        _ => {}
                    }
                }
            }
            Ok(_) => {}
            Err(_) => damaged += 1,
        }
    }
    field(out, "map pages", format_args!("{}, {damaged} of them damaged", steps.len()));
    field(out, "mapped", format_args!("{data} blocks with data, {zeroes} written as zeroes"));
    if lost > 0 {
        field(out, "lost", format_args!("{lost} blocks, which read as errors"));
    }
    for Discard { keep, start, end, window, .. } in view.discards(volume.id) {
        let what = if keep { "zeroes" } else { "a hole" };
        field(
            out,
            "pending",
            format_args!("blocks {start}..{end} become {what}, of window {window}"),
        );
    }
    Ok(())
}

pub(super) fn show_address(view: &View<'_>, name: &str, lba: Lba, out: &mut String) -> Result<()> {
    let volume = view.volume(name)?;
    line(out, format_args!("volume '{name}' (number {}), block {lba}", volume.id));
    if lba.0 >= volume.blocks {
        field(
            out,
            "address",
            format_args!("beyond the end: the volume has {} blocks", volume.blocks),
        );
    }
    let way = view.way(Table::Map, volume.family(), &volume.map, lba.0);
    let mut entry = Some((MapEntry::Hole, WindowNumber(0)));
    for step in &way {
        field(out, "page", format_args!("{}: {}", Named(step.id), pointer_text(&step.pointer)));
        match &step.page {
            Err(e) => {
                field(out, "damage", e);
                entry = None;
            }
            Ok(page) if step.id.level == 0 => {
                entry = MapEntry::get(page, lba.0 % Table::Map.per_leaf())
                    .map(|entry| (entry, step.pointer.birth));
            }
            Ok(_) => {}
        }
    }
    let Some((entry, birth)) = entry else {
        field(out, "entry", "can't be read");
        return Ok(());
    };
    field(out, "entry", map_entry_text(entry));
    for discard in view
        .discards(volume.id)
        .iter()
        .filter(|discard| (discard.start..discard.end).contains(&lba.0) && discard.window > birth)
    {
        let what = if discard.keep { "zeroes" } else { "a hole" };
        field(out, "pending", format_args!("a range of window {} makes it {what}", discard.window));
    }
    if let MapEntry::Block { pba, .. } = entry {
        block::show_physical(view, pba, out)?;
    }
    Ok(())
}
