//! Volumes and addresses.

use onefold_core::{Block, Lba, Result};

use super::{
    block,
    page::map_entry_text,
    superblock::root_text,
    text::{field, line, pointer_text},
    view::View,
};
use crate::{
    check::{report::Named, walk::Visit},
    format::{
        catalogue::Discard,
        page::{MapEntry, PageId, Pointer, Table},
        record::WindowNumber,
    },
};

/// Counts what a map holds. A client makes it as large as its volume, so that no page of it is kept.
struct Map<'a> {
    view: &'a View<'a>,
    pages: u64,
    data: u64,
    zeroes: u64,
    lost: u64,
    damaged: u64,
}

impl Visit for Map<'_> {
    fn named(&mut self, _: PageId, pointer: &Pointer, _: WindowNumber) -> bool {
        let inside = self.view.superblock.fixed.geometry.holds(pointer.address);
        self.pages += u64::from(!inside);
        self.damaged += u64::from(!inside);
        inside
    }

    fn page(&mut self, id: PageId, _: &Pointer, page: Result<&Block>) {
        self.pages += 1;
        let Ok(page) = page else {
            self.damaged += 1;
            return;
        };
        if id.level > 0 {
            return;
        }
        for slot in 0..Table::Map.per_leaf() {
            match MapEntry::get(page, slot) {
                Some(MapEntry::Block { .. }) => self.data += 1,
                Some(MapEntry::Zero) => self.zeroes += 1,
                Some(MapEntry::Lost) => self.lost += 1,
                _ => {}
            }
        }
    }
}

pub(super) fn show_volume(view: &View<'_>, name: &str, out: &mut String) -> Result<()> {
    let volume = view.volume(name)?;
    line(out, format_args!("volume '{name}'"));
    field(out, "number", volume.id);
    field(out, "size", format_args!("{} blocks of 4096 bytes", volume.blocks));
    field(out, "map", root_text(&volume.map));
    let mut map = Map { view, pages: 0, data: 0, zeroes: 0, lost: 0, damaged: 0 };
    view.visit(Table::Map, volume.family(), &volume.map, &mut map);
    let Map { pages, data, zeroes, lost, damaged, .. } = map;
    field(out, "map pages", format_args!("{pages}, {damaged} of them damaged"));
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
