//! One seed, from its beginning to its end.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use onefold_bucket::{Bucket, Frame, Known, Pace, Settings};
use onefold_core::{Files, Kind};

use super::{
    actors,
    params::Params,
    world::{Killed, Seat, World},
};
use crate::{
    checker::{Checker, Failure},
    front::{Outcome, guarded},
};

pub(super) fn run(params: Params, loud: bool) -> Outcome<Params> {
    let world = Arc::new(World::new(params.clone(), loud));
    let ended = guarded(|| {
        together(&world);
        finish(&world)
    });
    let mut inner = world.lock();
    let failure = inner.failure.take().or(ended.err());
    Outcome {
        seed: params.seed,
        params,
        failure,
        trace: inner.trace,
        reach: std::mem::take(&mut inner.reach),
    }
}

/// All actors, until each has ended.
fn together(world: &Arc<World>) {
    let (writers, readers) = {
        let inner = world.lock();
        (inner.params.writers, inner.params.readers)
    };
    let seats: Vec<_> = (0..writers + readers)
        .map(|_| Seat { world: world.clone(), actor: world.add(true) })
        .collect();
    let threads: Vec<_> = seats
        .into_iter()
        .enumerate()
        .map(|(at, seat)| {
            std::thread::spawn(move || {
                let act = if at < writers { actors::write } else { actors::read };
                let ended = guarded(|| {
                    act(&seat);
                    Ok(())
                });
                if let Err(failure) = ended {
                    seat.world.lock().failure.get_or_insert(failure);
                    seat.world.end(seat.actor);
                }
            })
        })
        .collect();
    world.start();
    threads.into_iter().for_each(|thread| drop(thread.join()));
}

/// All is calm: what was late comes, and one process more looks at everything.
fn finish(world: &Arc<World>) -> Result<(), Failure> {
    let seat = Seat { world: world.clone(), actor: world.add(false) };
    let acknowledged = {
        let mut inner = world.lock();
        if inner.failure.is_some() {
            return Ok(());
        }
        inner.calm = true;
        inner.all_come();
        inner.model.acknowledged()
    };
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        last_look(world, &seat, acknowledged)
    }));
    match checked {
        Ok(checked) => checked,
        Err(payload) if payload.is::<Killed>() => Ok(()),
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

fn last_look(world: &Arc<World>, seat: &Seat, acknowledged: usize) -> Result<(), Failure> {
    log_is_one(world)?;
    let store = Arc::new(seat.clone());
    let settings = || world.lock().params.settings();
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(Checker::Unexplained, format!("in the end: {what}: {error}"))
    };
    let older = world.lock().objects.clone();
    let bucket = Bucket::make(store.clone(), store.clone(), settings())
        .map_err(|error| failed("joining", &error))?;
    let compare = |bucket: &Bucket| {
        let found = actors::contents(bucket, true)
            .map_err(|error| Failure::new(Checker::Committed, error.to_string()))?;
        world.lock().model.compare(&found, acknowledged, true)
    };
    compare(&bucket)?;
    differences(&bucket)?;
    // After more than a day nothing is left but what is needed.
    for _ in 0..3 {
        seat.sleep(Duration::from_secs(100_000));
        bucket.files().create("x").map_err(|error| failed("creating", &error))?;
        bucket.files().remove("x").map_err(|error| failed("removing", &error))?;
        bucket.collect().map_err(|error| failed("collecting", &error))?;
    }
    bucket.leave().map_err(|error| failed("leaving", &error))?;
    let reader = Bucket::look(store.clone(), store.clone(), settings())
        .map_err(|error| failed("looking", &error))?;
    compare(&reader)?;
    differences(&reader)?;
    if reader.state().encode() != bucket.state().encode() {
        let text = "who wrote and who reads the log have different states";
        return Err(Failure::new(Checker::Committed, text));
    }
    nothing_left(world, &reader)?;
    if world.lock().params.goes_back {
        goes_back(world, seat, older, reader.known())?;
    }
    Ok(())
}

fn differences(bucket: &Bucket) -> Result<(), Failure> {
    match bucket.differences() {
        Ok(found) if found.is_empty() => Ok(()),
        Ok(found) => Err(Failure::new(Checker::Committed, format!("{found:?}"))),
        Err(error) => Err(Failure::new(Checker::Unexplained, error.to_string())),
    }
}

/// Frames follow each other without a gap, and no change is there twice.
fn log_is_one(world: &Arc<World>) -> Result<(), Failure> {
    let inner = world.lock();
    let mut nonces = BTreeSet::new();
    let mut before = [0; 32];
    let frames = inner.objects.iter().filter(|(name, _)| name.starts_with("log/"));
    for (number, (name, object)) in frames.enumerate() {
        let broken = |text: &str| Failure::new(Checker::FramesOnce, format!("{name}: {text}"));
        let frame = Frame::decode(&object.bytes, number as u64 + 1)
            .map_err(|error| broken(&error.to_string()))?;
        if frame.before != before {
            return Err(broken("it does not follow the one before"));
        }
        if !nonces.insert(frame.nonce) {
            return Err(broken("its change was there already"));
        }
        before = frame.sum;
    }
    Ok(())
}

/// There are no objects but those that the state needs.
fn nothing_left(world: &Arc<World>, bucket: &Bucket) -> Result<(), Failure> {
    let needed = bucket.needed();
    let inner = world.lock();
    let left = inner.objects.keys().filter(|name| !name.starts_with("log/"));
    let left: Vec<_> = left.filter(|name| !needed.contains(*name)).collect();
    // The last frames may have dropped a table, whose day is not over.
    if left.iter().any(|name| !name.starts_with("table/")) || left.len() > 2 {
        return Err(Failure::new(Checker::NothingLeft, format!("{left:?}")));
    }
    Ok(())
}

/// Somebody puts an older state of the store back.
fn goes_back(
    world: &Arc<World>,
    seat: &Seat,
    older: std::collections::BTreeMap<String, super::world::Object>,
    known: Known,
) -> Result<(), Failure> {
    world.lock().objects = older;
    world.lock().reach.hit("the store goes back");
    let settings = Settings { known: Some(known), ..world.lock().params.settings() };
    let store = Arc::new(seat.clone());
    match Bucket::look(store.clone(), store, settings) {
        Err(error) if error.kind() == Kind::Corrupt => Ok(()),
        Err(error) => Err(Failure::new(Checker::Unexplained, error.to_string())),
        Ok(_) => {
            let text = "an older state of the bucket is taken for the newest";
            Err(Failure::new(Checker::GoneBack, text))
        }
    }
}
