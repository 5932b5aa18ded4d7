//! Any block: superblock, page of the zone list, carrier, table page, or data.

use onefold_core::{Block, Fingerprint, Pba, Result};

use super::{
    page,
    text::{field, line},
    view::View,
    zone::{self, show_list_copy},
};
use crate::{
    check::batch::read_one,
    format::{
        FIRST_DOMAIN, Identity,
        carrier::Carrier,
        catalogue::CatalogueChange,
        geometry::SUPERBLOCKS,
        leftover,
        pack::Pack,
        page::{Form, header},
        record::{Change, Record},
        stored::{self, Stored},
    },
};

/// Bytes of data that are shown.
const SHOWN: usize = 64;

pub(super) fn show(view: &View<'_>, pba: Pba, out: &mut String) -> Result<()> {
    let geometry = view.superblock.fixed.geometry;
    let sealing = view.identity.sealing.as_deref();
    if let Some(place) = SUPERBLOCKS.iter().position(|&at| at == pba) {
        return super::superblock::show(view.disk, sealing, place as u32, out);
    }
    let block = read_one(view.disk, pba)?;
    if let Some((number, place)) = zone::list_place(&geometry, pba) {
        show_list_copy(view, number, place, out);
        return Ok(());
    }
    if let Some((number, place)) = geometry.leftover_place(pba) {
        show_leftover(view, pba, number, place, &block, out);
        return Ok(());
    }
    if !geometry.holds(pba) {
        line(
            out,
            if pba.0 < geometry.blocks() {
                page::fixed_name(pba)
            } else {
                format!("block {pba} lies behind the store")
            },
        );
        return Ok(());
    }
    line(
        out,
        format_args!(
            "block {pba}: zone {}, block {} of it",
            geometry.zone_of(pba),
            geometry.offset_of(pba)
        ),
    );
    show_tables(view, pba, out);
    let mut page = block.clone();
    if let Some((id, pointer)) = header(view.identity, pba, &mut page.0) {
        if pointer.address == pba {
            page::show(id, &pointer, view.is_current(id, &pointer), &page, out);
        } else {
            line(out, format_args!("a table page that belongs at block {}", pointer.address));
        }
    } else if Carrier::shape(view.identity, &block, pba).is_some() {
        show_carrier(view, pba, &block, out);
    } else if let Some(pack) = Pack::shape(view.identity, &block, pba) {
        let proven = Pack::proven(view.identity, &block, pba).is_some();
        line(out, if proven { "pack: whole" } else { "pack: damaged" });
        for fragment in 0..pack.len() as u8 {
            let fingerprint = pack.fingerprint(fragment).unwrap_or_default();
            field(out, "fragment", format_args!("{fragment}: fingerprint {fingerprint}"));
        }
    } else {
        let found = view.fingerprint(pba).ok().filter(|_| sealing.is_some()).and_then(|wanted| {
            let stored = Stored { pba, form: Form::Raw, prefix: wanted.prefix() };
            stored::found(view.identity, stored, &block, |found| found.agrees(&wanted))
        });
        match found {
            Some((domain, data, fingerprint)) => show_data(&data, domain, &fingerprint, out),
            None => {
                let fingerprint = view.identity.fingerprinter.one(&block);
                show_data(&block, FIRST_DOMAIN, &fingerprint, out);
            }
        }
    }
    Ok(())
}

/// The account of a block in the tables.
pub(super) fn show_physical(view: &View<'_>, pba: Pba, out: &mut String) -> Result<()> {
    let geometry = view.superblock.fixed.geometry;
    line(
        out,
        format_args!(
            "physical block {pba}: zone {}, block {} of it",
            geometry.zone_of(pba),
            geometry.offset_of(pba)
        ),
    );
    show_tables(view, pba, out);
    Ok(())
}

fn show_tables(view: &View<'_>, pba: Pba, out: &mut String) {
    let geometry = view.superblock.fixed.geometry;
    if !geometry.holds(pba) {
        return field(out, "place", "outside of the zones");
    }
    match view.zone(geometry.zone_of(pba).0) {
        Ok(zone) => field(
            out,
            "zone table",
            if zone.used.get(geometry.offset_of(pba)) { "in use" } else { "free" },
        ),
        Err(e) => field(out, "zone table", e),
    }
    let entry = view.references(pba);
    match &entry {
        Ok(entry) => field(out, "references", page::references_text(entry)),
        Err(e) => field(out, "references", e),
    }
    // Of a block without references it means nothing.
    if !entry.is_ok_and(|entry| entry.references == 0) {
        match view.fingerprint(pba) {
            Ok(fingerprint) => field(out, "fingerprint", fingerprint),
            Err(e) => field(out, "fingerprint", e),
        }
    }
}

fn show_carrier(view: &View<'_>, pba: Pba, block: &Block, out: &mut String) {
    let Some(carrier) = Carrier::shape(view.identity, block, pba) else { return };
    let proven = Carrier::proven(view.identity, block, pba).is_some();
    let header = carrier.header;
    let (committed, epoch) = (view.superblock.state.committed, view.superblock.state.epoch);
    line(out, if proven { "carrier: whole" } else { "carrier: damaged, or of another place" });
    field(out, "address", header.address);
    field(out, "epoch", format_args!("{} (the store's is {epoch})", header.epoch));
    field(out, "generation", header.generation);
    let state = if header.window <= committed { "in the tables" } else { "in no checkpoint" };
    field(
        out,
        "window",
        format_args!(
            "{}, {state}; carrier {} of {}",
            header.window,
            header.position + 1,
            header.carriers
        ),
    );
    field(out, "durable then", header.durable);
    let mut content = Block::zeroed();
    // Of a sealed store the tables know the prefix, or a record of this carrier.
    let of_record = |record: Option<Record>| match record?.change {
        Change::Block { pba: at, fingerprint, .. } | Change::Catalogue { pba: at, fingerprint } => {
            (at == pba).then(|| fingerprint.prefix())
        }
        Change::Range { .. } => None,
    };
    let told = carrier.records().find_map(of_record);
    let prefix = told.or_else(|| view.fingerprint(pba).ok().map(|found| found.prefix()));
    let expanded = |domain| carrier.expand(domain, prefix.unwrap_or(0), &mut content);
    let opened = first_domain(view.identity, expanded);
    match opened {
        Ok(domain) => {
            let fingerprinter = view.identity.fingerprinter_of(domain);
            let newest = fingerprinter.map(|one| one.one(&content)).unwrap_or_default();
            let is_it = |of: &Fingerprint| prefix.is_some_and(|prefix| of.has_prefix(prefix));
            let place = Stored { pba, form: Form::Carried, prefix: prefix.unwrap_or(0) };
            let older = match is_it(&newest) {
                true => None,
                false => stored::by_older(view.identity, domain, place, &mut content, is_it)
                    .unwrap_or(None),
            };
            let fingerprint = older.unwrap_or(newest);
            field(out, "carries", format_args!("a block with fingerprint {fingerprint}"));
            show_domain(domain, out);
            if let Ok(change) = CatalogueChange::decode(&content) {
                field(out, "change", format_args!("{change:?}"));
            }
        }
        Err(e) => field(out, "carries", e),
    }
    let records: Vec<Option<Record>> = carrier.records().collect();
    field(out, "records", records.len());
    for record in records {
        match record {
            None => field(out, "record", "can't be read"),
            Some(record) => field(out, "record", record_text(&record)),
        }
    }
}

fn show_leftover(
    view: &View<'_>,
    pba: Pba,
    number: u32,
    place: usize,
    block: &Block,
    out: &mut String,
) {
    line(out, format_args!("block {pba}: page {number} of the leftover table, place {place}"));
    for (n, sector) in leftover::decode(view.identity, pba, block).iter().enumerate() {
        let Some(sector) = sector else {
            field(out, &format!("sector {n}"), "never written, or damaged");
            continue;
        };
        let state = if sector.window <= view.superblock.state.committed {
            "in the tables"
        } else {
            "in no checkpoint"
        };
        field(
            out,
            &format!("sector {n}"),
            format_args!("window {}, {state}; durable then {}", sector.window, sector.durable),
        );
        for record in &sector.records {
            field(out, "record", record_text(record));
        }
    }
}

fn record_text(record: &Record) -> String {
    let Record { volume, lba, change, timestamp } = record;
    let what = match change {
        Change::Block { pba, carried, fingerprint } => {
            format!("is block {pba}, {}, fingerprint {fingerprint}", page::kind(*carried))
        }
        Change::Range { blocks, keep } => {
            format!("and on, {blocks} blocks: {}", if *keep { "zeroes" } else { "a hole" })
        }
        Change::Catalogue { pba, fingerprint } => {
            format!("changes the catalogue as block {pba} says, fingerprint {fingerprint}")
        }
    };
    format!("{timestamp:#x}: volume {volume}, block {lba} {what}", timestamp = timestamp.0)
}

/// The first domain in which something succeeds.
fn first_domain(identity: &Identity, mut try_in: impl FnMut(u32) -> Result<()>) -> Result<u32> {
    let mut failed = None;
    for domain in identity.domains() {
        match try_in(domain) {
            Ok(()) => return Ok(domain),
            Err(error) => _ = failed.get_or_insert(error),
        }
    }
    failed.map_or(Ok(FIRST_DOMAIN), Err)
}

fn show_domain(domain: u32, out: &mut String) {
    if domain != FIRST_DOMAIN {
        field(out, "domain", domain);
    }
}

fn show_data(block: &Block, domain: u32, fingerprint: &Fingerprint, out: &mut String) {
    if block.is_zero() {
        return line(out, "all zeroes");
    }
    line(out, "data, or something that is gone");
    field(out, "fingerprint", fingerprint);
    show_domain(domain, out);
    for (n, bytes) in block.0[..SHOWN].chunks(16).enumerate() {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String = bytes
            .iter()
            .map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { byte as char } else { '.' })
            .collect();
        field(out, &format!("{:03x}", n * 16), format_args!("{}  {text}", hex.join(" ")));
    }
}
