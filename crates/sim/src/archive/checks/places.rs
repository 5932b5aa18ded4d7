//! What must be true of where chunks lie.

use std::collections::BTreeMap;

use onefold_archive::{Address, Class, Container, ContainerKind, PLACES_MAX, Part, Reader, Tables};
use onefold_core::Error;

use crate::checker::{Checker, Failure};

/// Old numbers lead to few containers that are there and know them, and no further; what holds
/// chunks of streams stands replicated or has a class.
pub(crate) fn look_at_places(tables: &Tables, late: bool) -> Result<(), Failure> {
    let wrong = |why: String| Err(Failure::new(Checker::StoreCheck, why));
    for (id, places) in &tables.moved_to {
        let knows = |place| {
            tables
                .containers
                .get(place)
                .is_some_and(|container: &Container| container.merged.contains(id))
        };
        let most = if late { PLACES_MAX } else { 1 };
        if places.is_empty() || places.len() > most || !places.iter().all(knows) {
            return wrong(format!("container {id} went to {places:?}"));
        }
        if tables.containers.contains_key(id) {
            return wrong(format!("container {id} is there, and went elsewhere"));
        }
    }
    for (id, container) in &tables.containers {
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
    Ok(())
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
        if before.containers.contains_key(&id) || before.moved_to.contains_key(&id) {
            continue;
        }
        // Gone since, if it is not there.
        let Some(container) = tables.containers.get(&id) else { continue };
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
