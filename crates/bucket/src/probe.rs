//! Whether a store keeps its word on creating once.

use std::sync::Arc;

use onefold_core::{Error, Kind, Result};

use crate::{
    format::probe_name,
    objects::{Created, Objects},
    pace::Pace,
};

/// Creations that are sent at once.
const AT_ONCE: usize = 8;

/// Tries whether the store creates an object once: eight creations of one new name at once, and then one more.
/// Exactly one may succeed. Some stores take the condition and do not keep it.
///
/// # Errors
/// `Unsupported` when the store does not keep its word, and those of the store.
pub fn probe(objects: &Arc<dyn Objects>, pace: &dyn Pace) -> Result<()> {
    let name = probe_name(pace.nonce());
    let send = |n: usize| objects.create(&name, &[n as u8; 16]);
    let mut ends: Vec<Created> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|n| scope.spawn(move || send(n))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    // A store that shows no fault to eight shows none to more, and each of them takes its time.
    if let Some(Created::Unknown(error)) = ends.first()
        && ends.iter().all(|end| matches!(end, Created::Unknown(_)))
    {
        return Err(error.clone());
    }
    ends.push(send(AT_ONCE));
    let found = objects.get(&name, 0, 64);
    let _ = objects.delete(&name);
    let new = ends.iter().filter(|end| matches!(end, Created::New)).count();
    let unknown = ends.iter().find_map(|end| match end {
        Created::Unknown(error) => Some(error),
        _ => None,
    });
    if new > 1 {
        let why = format!(
            "this store lets {new} of {} writers create one object: it ignores the condition \
             If-None-Match, and two hosts would damage the archive. Onefold can't use it",
            ends.len()
        );
        return Err(Error::new(Kind::Unsupported, why));
    }
    // A process that is told that an object is there reads it, and takes it for another host's.
    let refused = ends.iter().filter(|end| matches!(end, Created::Exists)).count();
    if matches!(ends.last(), Some(Created::New)) && refused > 0 {
        let why = format!(
            "this store tells {refused} writers that an object is there, and then lets another one create it: \
             it does not keep the condition If-None-Match. Onefold can't use it"
        );
        return Err(Error::new(Kind::Unsupported, why));
    }
    match (new, unknown, found) {
        (_, Some(error), Err(_)) => Err(error.clone()),
        (0, None, _) => {
            let why = "this store creates no object under a condition, and Onefold needs that";
            Err(Error::new(Kind::Unsupported, why))
        }
        (_, _, Err(error)) => Err(error.context("an object that was created can't be read")),
        _ => Ok(()),
    }
}
