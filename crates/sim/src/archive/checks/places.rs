//! What must be true of where chunks lie.

use onefold_archive::{Class, Container, ContainerKind, PLACES_MAX, Tables};

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
