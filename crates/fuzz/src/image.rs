//! Damaged stores: opening one gives a typed error or a store that works, and a read gives an error
//! or what was written.

use std::sync::Arc;

use onefold_backend::MonotonicClock;
use onefold_block::Engine;
use onefold_core::{BLOCK_BYTES, Lba, Result, VolumeId};

use crate::{
    corrupt::{Damage, Image, VOLUMES, content, persevere, read, settings},
    reach,
};

/// An image with damaged blocks. With one damaged block, what can be read is right; with more, it
/// is something that was written there.
pub fn image(data: &[u8]) {
    let damage = Damage::from_input(data, false);
    let strict = damage.changed.len() <= 1;
    let image = damage.image;
    let Some(engine) = reach::noted(open(damage)) else { return };
    let ids = volumes(&engine);
    for (volume, (name, blocks)) in VOLUMES.iter().enumerate() {
        let Some(id) = ids[volume] else {
            assert!(!strict, "the volume '{name}' is gone");
            continue;
        };
        assert!(
            engine.volume(id).is_ok_and(|state| state.blocks == *blocks),
            "the volume '{name}' has another size"
        );
        for lba in 0..*blocks {
            if let Ok(found) = read(&engine, id, lba) {
                judge(image, strict, (volume, lba), &found);
            }
        }
    }
    if is_used(data) {
        let _ = use_it(&engine, ids[0]);
    }
}

/// An image whose checksums are right again over the damage: what it says cannot be judged, but
/// nothing may break.
pub fn repaired_image(data: &[u8]) {
    let Some(engine) = reach::noted(open(Damage::from_input(data, true))) else { return };
    for id in volumes(&engine).into_iter().flatten() {
        let Ok(state) = engine.volume(id) else { continue };
        for lba in 0..state.blocks.min(512) {
            let _ = read(&engine, id, lba);
        }
        let _ = read(&engine, id, state.blocks - 1);
        let _ = engine.extents(id, Lba(0), state.blocks.min(1 << 20), 1000);
        if is_used(data) {
            let _ = use_it(&engine, Some(id));
        }
    }
    let _ = engine.close();
}

/// Using a store costs most of the time: a quarter of the inputs do.
fn is_used(data: &[u8]) -> bool {
    data.first().is_some_and(|first| first & 6 == 0)
}

fn open(damage: Damage) -> Result<Engine> {
    Engine::open(Arc::new(damage.disk()), Arc::new(MonotonicClock::new()), settings())
}

/// The volumes of the example, where they are there, and then the others.
fn volumes(engine: &Engine) -> Vec<Option<VolumeId>> {
    let mut found: Vec<Option<VolumeId>> =
        VOLUMES.iter().map(|(name, _)| engine.find_volume(name).ok()).collect();
    found.extend(
        engine
            .volumes()
            .into_iter()
            .map(|(id, _)| Some(id))
            .filter(|id| !found.contains(id))
            .take(4)
            .collect::<Vec<_>>(),
    );
    found
}

pub(crate) fn judge(image: &Image, strict: bool, at: (usize, u64), found: &[u8; BLOCK_BYTES]) {
    let zero = found.iter().all(|&byte| byte == 0);
    let now = image.now.get(&at);
    let right = now.map_or(zero, |now| now == found);
    let once =
        zero || image.ever.get(&at).is_some_and(|ever| ever.iter().any(|content| content == found));
    assert!(right || !strict && once, "block {} of volume {} is wrong", at.1, VOLUMES[at.0].0);
}

/// Writes, flushes, trims and makes a checkpoint; what was flushed can be read, or gives an error.
fn use_it(engine: &Engine, volume: Option<VolumeId>) -> Result<()> {
    let Some(id) = volume else { return Ok(()) };
    let blocks = engine.volume(id)?.blocks.min(64);
    for lba in 0..blocks {
        persevere(engine, || engine.write(id, lba * 4096, &content(1000 + lba % 40)))?;
    }
    engine.flush()?;
    persevere(engine, || engine.trim(id, 0, blocks / 2 * 4096))?;
    for round in 0..2 {
        for lba in 0..blocks {
            if let Ok(found) = read(engine, id, lba) {
                let expected =
                    if lba < blocks / 2 { [0; BLOCK_BYTES] } else { content(1000 + lba % 40) };
                assert!(found == expected, "block {lba}, written after opening, is wrong");
            }
        }
        if round == 0 {
            engine.flush()?;
            engine.checkpoint()?;
            while engine.idle_step(onefold_block::Idleness::Long)? {}
        }
    }
    Ok(())
}
