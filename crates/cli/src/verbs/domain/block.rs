//! `onefold domain` of a block store: its keys change while nobody serves it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use onefold_backend::MonotonicClock;
use onefold_block::{
    DomainLimits, DomainListed, MEMORY_MIN, Settings, create_domain, domains_of, erase_domain,
};
use onefold_core::{Disk, Error, Kind, Result};
use serde_json::{Value, json};

use super::{
    called::{Called, shown},
    limits::Limits,
};
use crate::verbs::{
    served_or_not,
    volume::{
        block::{change, lines},
        done, said,
    },
};
use onefold::parts::{
    control::{DomainLine, Request},
    keys::asker,
    store_file::StoreFile,
};
use onefold_console::{
    failure::Failure,
    output::Answer,
    size::{Size, counted},
};

fn settings(file: &StoreFile) -> Settings {
    Settings { keys: file.keys(), ..Settings::for_memory(MEMORY_MIN) }
}

/// All domains, as the keys say. Needs no lock.
pub(in crate::verbs) fn domains(file: &StoreFile) -> Result<Vec<DomainListed>> {
    let area = file.key_area()?;
    let asker = asker().ok_or_else(|| Error::new(Kind::Denied, "nobody can be asked for a key"))?;
    let keys = area.keys(&asker.root(&area, file.path())?)?;
    let forged = || {
        let why =
            "the key area was changed by somebody without its key; nothing that it says counts";
        Error::new(Kind::Corrupt, why)
    };
    Ok(domains_of(&keys.ok_or_else(forged)?))
}

/// What a store has in a domain.
#[derive(Clone, Copy, Default)]
struct Holds {
    volumes: u64,
    snapshots: u64,
    bytes: u64,
}

/// What a store has in each of its domains, as its server says where there is one.
fn holds(file: &StoreFile) -> Result<BTreeMap<u32, Holds>> {
    let mut all: BTreeMap<u32, Holds> = BTreeMap::new();
    for volume in lines(file)? {
        let holds = all.entry(volume.domain).or_default();
        holds.volumes += 1;
        holds.snapshots += volume.snapshots;
        holds.bytes += volume.bytes;
    }
    Ok(all)
}

fn words(holds: Holds) -> String {
    format!(
        "{} of {}, and {}",
        counted(holds.volumes, "volume"),
        Size(holds.bytes),
        counted(holds.snapshots, "snapshot")
    )
}

pub(super) fn create(
    store: &Path,
    file: &StoreFile,
    (name, limits): (&str, &Limits),
    answer: &Answer,
) -> Result<(), Failure> {
    let in_store = |error: Error| error.context(store.display());
    let made = || {
        file.key_area()?;
        if limits.are_given() {
            may_have(file, limits)?;
        }
        create_domain(&*file.claim()?.disk(), &settings(file), name)
    };
    let number = made().map_err(in_store)?;
    let mut with = String::new();
    let mut report = json!({ "store": shown(store), "name": name, "number": number });
    if limits.are_given() {
        let request = limits.request(name);
        change(file, &request)?;
        with = format!("; {}", said(&request));
        if let (Some(report), Value::Object(limits)) = (report.as_object_mut(), done(&request)) {
            report.extend(limits.into_iter().filter(|(key, _)| key != "done" && key != "name"));
        }
    }
    let words = format_args!(
        "domain '{}' of {} has number {number}{with}",
        name.escape_debug(),
        store.display()
    );
    answer.tell(&report, words)
}

/// Fails unless a domain that is about to be made may have these limits.
fn may_have(file: &StoreFile, limits: &Limits) -> Result<()> {
    let blocks = |size: Option<Size>| size.map_or(0, |size| size.0.div_ceil(4096));
    let limits = DomainLimits { quota: blocks(limits.quota), reserve: blocks(limits.reserve) };
    let working = file.work(Settings::for_memory(MEMORY_MIN))?;
    let may = working.store().check_domain(limits);
    let closed = working.close();
    may.and(closed)
}

/// Domains with limits, as the store's server says where there is one.
fn limited(file: &StoreFile) -> Result<BTreeMap<u32, DomainLine>> {
    let all: Vec<DomainLine> = served_or_not(
        file,
        |server| {
            let report: Value = server.ask(&Request::Status)?;
            Ok(serde_json::from_value(report["domains"].clone()).unwrap_or_default())
        },
        || {
            let status = StoreFile::look(file.path())?.open_unchanged()?.status();
            Ok(status.domains.iter().map(DomainLine::of).collect())
        },
    )?;
    Ok(all.into_iter().map(|domain| (domain.number, domain)).collect())
}

/// The limits of a domain, for lists.
fn shown_limits(domain: &DomainLine) -> String {
    let stored = domain.stored_bytes.map_or("?".to_owned(), |bytes| Size(bytes).to_string());
    let limit = |word: &str, bytes: Option<u64>| {
        bytes.map_or(String::new(), |bytes| format!(", {word} {}", Size(bytes)))
    };
    let (quota, reserve) = (domain.quota_bytes, domain.reserve_bytes);
    format!("; {stored} stored{}{}", limit("quota", quota), limit("reserve", reserve))
}

pub(super) fn list(store: &Path, file: &StoreFile, answer: &Answer) -> Result<(), Failure> {
    let all = domains(file).map_err(|error| error.context(store.display()))?;
    let (holds, limited) = (holds(file)?, limited(file)?);
    let of = |domain: &DomainListed| holds.get(&domain.number).copied().unwrap_or_default();
    let row = |domain: &DomainListed| -> Value {
        let Holds { volumes, snapshots, bytes } = of(domain);
        let limits = limited.get(&domain.number);
        json!({
            "number": domain.number, "name": domain.name, "erased": domain.name.is_none(),
            "volumes": volumes, "snapshots": snapshots, "bytes": bytes,
            "generation": domain.generation, "older_data_key": domain.has_older,
            "stored_bytes": limits.and_then(|one| one.stored_bytes),
            "quota_bytes": limits.and_then(|one| one.quota_bytes),
            "reserve_bytes": limits.and_then(|one| one.reserve_bytes),
        })
    };
    let rows: Vec<Value> = all.iter().map(row).collect();
    let line = |domain: &DomainListed| {
        let name = Called(domain.name.as_deref());
        let limits = limited.get(&domain.number).map(shown_limits).unwrap_or_default();
        let older = if domain.has_older { "; two data keys" } else { "" };
        format!("{:>6}  {name:<30}  {}{limits}{older}", domain.number, words(of(domain)))
    };
    let lines: Vec<String> = all.iter().map(line).collect();
    let report = json!({ "store": shown(store), "domains": rows });
    answer.tell(&report, format_args!("number  name\n{}", lines.join("\n")))
}

pub(super) fn erase(
    store: &Path,
    file: &StoreFile,
    (name, confirm): (&str, Option<&str>),
    answer: &Answer,
) -> Result<(), Failure> {
    let in_store = |error: Error| error.context(store.display());
    let all = domains(file).map_err(in_store)?;
    let found = all.iter().find(|one| !name.is_empty() && one.name.as_deref() == Some(name));
    let number = found.map(|one| one.number).ok_or_else(|| {
        let why =
            format!("there is no domain '{}'; onefold domain list shows all", name.escape_debug());
        in_store(Error::new(Kind::NotFound, why))
    })?;
    // Nobody serves it from here on.
    let holds = holds(file)?.get(&number).copied().unwrap_or_default();
    let keeper = file.claim()?;
    let digits = format!("{}-{number}", &file.id()[..8]);
    let held = words(holds);
    if confirm != Some(&digits) {
        return Err(Failure::new(format!(
            "nobody could read what is in domain '{}' of {} any more ({held}): if you mean it, say \
             --confirm {digits}",
            name.escape_debug(),
            store.display()
        )));
    }
    let disk: Arc<dyn Disk> = keeper.disk();
    let clock = Arc::new(MonotonicClock::new());
    erase_domain(&disk, clock, &settings(file), number).map_err(in_store)?;
    let words = format_args!(
        "domain {number} of {} is erased ({held}); deleting its volumes frees their space",
        store.display()
    );
    let report = json!({
        "store": shown(store), "name": name, "number": number, "erased": true,
        "volumes": holds.volumes, "snapshots": holds.snapshots, "bytes": holds.bytes,
    });
    answer.tell(&report, words)
}
