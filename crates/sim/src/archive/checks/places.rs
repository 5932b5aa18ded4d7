//! What must be true of where chunks lie.

use std::collections::{BTreeMap, BTreeSet};

use onefold_archive::{Address, Class, ContainerKind, PLACES_MAX, Part, Reader, Tables, Totals};
use onefold_core::Error;

use crate::checker::{Checker, Failure};

/// Old numbers lead to few containers that are there and know them, and no further; what holds
/// chunks of streams stands replicated or has a class.
pub(crate) fn look_at_places(tables: &Tables, late: bool) -> Result<(), Failure> {
    let wrong = |why: String| Err(Failure::new(Checker::StoreCheck, why));
    for (id, places) in &tables.moved_to {
        let knows = |place| {
            let found = tables.containers.get(place).ok().flatten();
            found.is_some_and(|container| container.merged.contains(id))
        };
        let most = if late { PLACES_MAX } else { 1 };
        if places.is_empty() || places.len() > most || !places.iter().all(knows) {
            return wrong(format!("container {id} went to {places:?}"));
        }
        if tables.containers.contains_key(id).unwrap_or(false) {
            return wrong(format!("container {id} is there, and went elsewhere"));
        }
    }
    for container in &tables.containers {
        let Ok(container) = container else { break };
        let id = container.stored.id;
        let (class, data) = tables.class(&container.stored.place);
        let fits = match class {
            Class::Plain => !late || container.stored.kind == ContainerKind::Recipes,
            Class::Replicated => late && data == 1 && container.stored.kind == ContainerKind::Data,
            _ => late && container.stored.kind == ContainerKind::Data,
        };
        if !fits {
            return wrong(format!("container {id} is {class}, with {data} columns of data"));
        }
    }
    if tables.on_demand { is_found_in_all(tables) } else { Ok(()) }
}

/// All containers have lengths of Padmé's: of the binary digits of the number of 4 KiB steps few count. True when one
/// has so many steps that most numbers are none of these.
pub(crate) fn look_at_lengths(tables: &Tables) -> Result<bool, Failure> {
    let mut is_long = false;
    for container in &tables.containers {
        let Ok(container) = container else { break };
        let (id, bytes) = (container.stored.id, container.stored.place.bytes);
        let (steps, rest) = (bytes / 4096, bytes % 4096);
        let digits = steps.checked_ilog2().unwrap_or(0);
        let counting = u32::BITS - digits.leading_zeros();
        if rest > 0 || steps.trailing_zeros() + counting < digits {
            let why = format!("container {id} takes {bytes} bytes in an archive that pads");
            return Err(Failure::new(Checker::Secrecy, why));
        }
        is_long |= steps > 8;
    }
    Ok(is_long)
}

/// What the snapshot says in place of all containers is what these say.
fn is_found_in_all(tables: &Tables) -> Result<(), Failure> {
    let (mut moved_to, mut not_imported, mut count) = (BTreeMap::new(), BTreeSet::new(), 0);
    for container in &tables.containers {
        // What can't be read is told elsewhere.
        let Ok(container) = container else { return Ok(()) };
        let home = container.stored.id;
        count += 1;
        for number in &container.merged {
            moved_to.entry(*number).or_insert_with(BTreeSet::new).insert(home);
        }
        if container.logged > tables.index.upto {
            not_imported.insert(home);
        }
    }
    if let Some(wrong) = wrong_totals(tables) {
        return Err(Failure::new(Checker::StoreCheck, wrong));
    }
    let said = tables.moved_to.iter();
    let said: BTreeMap<_, BTreeSet<_>> =
        said.map(|(number, homes)| (*number, homes.iter().copied().collect())).collect();
    let recent = tables.not_imported().unwrap_or_default().into_iter().collect();
    if said == moved_to && not_imported == recent && count == tables.containers.len() {
        return Ok(());
    }
    let message = format!(
        "{count} containers, moved {moved_to:?}, not imported {not_imported:?}; the snapshot says \
         {}, {said:?}, {recent:?}",
        tables.containers.len()
    );
    Err(Failure::new(Checker::StoreCheck, message))
}

/// The sums over containers that the tables keep, where they are not those of the containers.
fn wrong_totals(tables: &Tables) -> Option<String> {
    let (mut sums, mut replicated) = (Totals::default(), 0);
    for container in tables.containers.iter().flatten() {
        let stored = container.stored;
        sums.containers += 1;
        sums.bytes += u64::from(stored.place.bytes);
        sums.written_bytes += tables.written(&stored.place);
        sums.chunks += u64::from(stored.chunks);
        sums.raw_bytes += u64::from(stored.raw_bytes);
        replicated += u64::from(tables.class(&stored.place).0 == Class::Replicated);
    }
    let same = sums == tables.sums().all() && replicated == tables.sums().replicated().1;
    (!same).then(|| format!("{sums:?} is in containers, and {:?} is said", tables.sums().all()))
}

/// The chunks that a put stored, which gathered them, lie in containers of the classes that their
/// counts in the stream say; `before` are the tables of its beginning, and `is_one_batch` says that
/// it gathered all of them before it placed one. Gives how many chunks have a count above one.
///
/// # Errors
/// Those of the reader, else what is wrong.
pub(crate) fn look_at_classes(
    reader: &mut Reader,
    name: &str,
    before: &Tables,
    is_one_batch: bool,
) -> Result<Result<u64, Failure>, Error> {
    let stream = reader.stream(name)?;
    let mut counts: BTreeMap<Address, u64> = BTreeMap::new();
    reader.parts(&stream.recipe, &mut |_, part| {
        if let Part::Run { first, fingerprints, .. } = part {
            for slot in first.slot..first.slot + fingerprints.len() as u16 {
                *counts.entry(Address { slot, ..first }).or_default() += 1;
            }
        }
        Ok(())
    })?;
    let (tables, mut shared) = (reader.tables(), 0);
    for (address, count) in counts {
        let id = address.container;
        if before.containers.contains_key(&id)? || before.moved_to.contains_key(&id) {
            continue;
        }
        // Gone since, if it is not there.
        let Some(container) = tables.containers.get(&id)? else { continue };
        let class = tables.class(&container.stored.place).0;
        let fits = match class {
            Class::Cold => !is_one_batch || count == 1,
            Class::Baseline => count >= 2,
            Class::Hot => count >= 3,
            Class::Plain | Class::Replicated => false,
        };
        if !fits {
            let why = format!("a chunk of {name} with {count} references lies in {class}");
            return Ok(Err(Failure::new(Checker::StoreCheck, why)));
        }
        shared += u64::from(count > 1);
    }
    Ok(Ok(shared))
}
