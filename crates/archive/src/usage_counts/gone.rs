//! What names chunks of a domain that was erased: nobody counts it.

use onefold_core::Result;

use crate::{
    format::{damage::is_damage, record::Pieces},
    operations_log::{Archive, is_erased},
    tables::Tables,
};

/// True when a recipe, or roots of trees, are of a domain that was erased: nobody reads what they name, and
/// its containers go as they are.
pub(crate) fn is_gone(archive: &Archive, tables: &Tables, recipe: &[Pieces]) -> Result<bool> {
    if tables.domains.erased.is_empty() {
        return Ok(false);
    }
    let Some(first) = recipe.first() else { return Ok(false) };
    match tables.places(first.container).next() {
        Some(Ok(home)) => Ok(is_erased(archive, home.stored.domain)),
        Some(Err(error)) if !is_damage(&error) => Err(error),
        _ => Ok(false),
    }
}
