//! Damaged stores under the tools: check, inspect, scrub and repair give an answer or a typed
//! error, and what a repair leaves is right.

use std::sync::Arc;

use onefold_backend::MonotonicClock;
use onefold_block::{
    Engine,
    check::{self, What},
};
use onefold_core::{Disk, Lba, Pba, ZoneId};

use crate::{
    corrupt::{Damage, VOLUMES, read, settings},
    image::judge,
    reach,
};

/// A damaged image, with or without checksums that are right again, under every tool.
pub fn tools(data: &[u8]) {
    let first = data.first().copied().unwrap_or(0);
    let forged = first & 8 != 0;
    let damage = Damage::from_input(data, forged);
    let (image, clean) = (damage.image, first & 1 == 1);
    // A crash leaves what damage leaves: then older versions may come back. A repair that gives up
    // windows brings them back as well.
    let mut strict = damage.changed.len() <= 1 && clean;
    let changed: Vec<u64> = damage.changed.keys().copied().collect();
    let disk: Arc<dyn Disk> = Arc::new(damage.disk());
    let Some(found) = reach::noted(check::check(&disk, &mut |_| {})) else { return };
    if found.is_well() {
        assert!(check::look(&disk).is_ok(), "the store is well, but can't be opened");
    }
    for at in changed.into_iter().chain([0, 8, 16]).take(8) {
        let zone = ZoneId(at / 16);
        for what in
            [What::Block(Pba(at)), What::Physical(Pba(at)), What::Zone(zone), What::ZoneList]
        {
            let _ = check::inspect(&*disk, &what);
        }
        let _ = check::inspect(&*disk, &What::Address(VOLUMES[0].0.into(), Lba(at % 500)));
    }
    let _ = check::inspect(&*disk, &What::Volume(VOLUMES[1].0.into()));
    let _ = check::scrub(&disk, &mut |_| {}, &mut || false);
    let repaired = check::repair(&disk, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {});
    let Some(repaired) = reach::noted(repaired) else { return };
    strict &= repaired.lost_windows.is_empty();
    if !repaired.after.is_well() {
        return;
    }
    let again = check::repair(&disk, Arc::new(MonotonicClock::new()), &settings(), &mut |_| {});
    assert!(
        again.is_ok_and(|again| again.after.is_well() && again.lost_addresses == 0),
        "a repaired store needs another repair"
    );
    let engine = match Engine::open(disk, Arc::new(MonotonicClock::new()), settings()) {
        Ok(engine) => engine,
        Err(error) => panic!("a store that is well can't be opened: {error}"),
    };
    for (volume, (name, blocks)) in VOLUMES.iter().enumerate().filter(|_| !forged) {
        let Ok(id) = engine.find_volume(name) else { continue };
        for lba in 0..*blocks {
            if let Ok(found) = read(&engine, id, lba) {
                judge(image, strict, (volume, lba), &found);
            }
        }
    }
}
