//! One seed: actors are started, killed and stopped as it says, and in the end all is checked.

use std::sync::Arc;

use onefold_cluster::Session;
use onefold_core::Error;

use super::{
    actors::{self, gateway, receiver, renamer, snapper, steward},
    checks::end::clean_up,
    params::Params,
    sealed,
    store::SimStore,
    world::{Role, World},
};
use crate::{
    checker::{Checker, Failure},
    front::Outcome,
};

/// Runs what `params` say; `loud` prints what happens.
pub(super) fn run(params: Params, loud: bool) -> Outcome<Params> {
    let world = World::new(&params, loud);
    world.start((Role::Keeper, 0), false, |world, store, _| set_up(world, store));
    world.run(100_000, |_, _| {});
    {
        let mut inner = world.inner();
        inner.calm = false;
        inner.say(|| "set up".into());
    }
    if params.gateways {
        (0..params.clients).for_each(|n| start(&world, (Role::Gateway, n)));
    }
    for volume in 0..if params.gateways { 0 } else { params.volumes } {
        (0..params.clients).for_each(|_| start(&world, (Role::Client, volume)));
    }
    (0..params.workers).for_each(|n| start(&world, (Role::Worker, n)));
    if params.puts {
        (0..=usize::from(params.mixed)).for_each(|n| start(&world, (Role::Putter, n)));
    }
    if params.steward {
        start(&world, (Role::Steward, params.volumes - 1));
    }
    if params.scrubs {
        start(&world, (Role::Scrubber, 0));
    }
    // Where snapshots are sent the client takes them.
    if params.snapshots && !params.receives {
        start(&world, (Role::Snapper, 0));
    }
    if params.receives {
        start(&world, (Role::Receiver, 0));
    }
    if params.renames {
        (0..2).for_each(|n| start(&world, (Role::Renamer, n)));
    }
    world.run(params.events, start);
    world.calm_down();
    world.run(200_000, |_, _| {});
    if world.inner().failure.is_none() {
        world.inner().say(|| "calm".into());
        world.start((Role::Keeper, 1), false, |world, store, _| clean_up(world, store));
        world.run(400_000, |_, _| {});
        let mut inner = world.inner();
        if inner.failure.is_none() && !inner.all_ended() {
            inner.fail(Failure::new(Checker::Progress, "cleaning up does not end"));
        }
    }
    sealed::nothing_shows(&mut world.inner());
    world.end();
    let trace = world.trace();
    let inner = world.inner();
    let mut reach = inner.reach.clone();
    if params.is_orderly() {
        reach.add("orderly: references made by workers", inner.double.all);
        reach.add("orderly: made by two workers", inner.double.twice);
    }
    inner.roles().into_iter().for_each(|(role, count)| {
        reach.add(
            match role {
                Role::Keeper => "keepers",
                Role::Client => "clients",
                Role::Worker => "workers",
                Role::Putter => "putters",
                Role::Scrubber => "scrubbers",
                Role::Steward => "stewards",
                Role::Renamer => "renamers",
                Role::Snapper => "snappers",
                Role::Receiver => "receivers",
                Role::Gateway => "gateways",
            },
            count as u64,
        );
    });
    Outcome { seed: params.seed, params, failure: inner.failure.clone(), trace, reach }
}

fn start(world: &Arc<World>, role: (Role, usize)) {
    let life: fn(&Arc<World>, SimStore, usize) = match role {
        (Role::Client, 0) => |world, store, actor| actors::client(world, store, actor, 0),
        (Role::Client, 1) => |world, store, actor| actors::client(world, store, actor, 1),
        (Role::Client, _) => |world, store, actor| actors::client(world, store, actor, 2),
        (Role::Steward, 1) => |world, store, actor| steward::steward(world, store, actor, 1),
        (Role::Steward, _) => |world, store, actor| steward::steward(world, store, actor, 2),
        (Role::Gateway, _) => gateway::gateway,
        (Role::Snapper, _) => snapper::snapper,
        (Role::Receiver, _) => receiver::receiver,
        (Role::Putter, _) => actors::putter,
        (Role::Scrubber, _) => actors::scrubber,
        (Role::Renamer, _) => renamer::renamer,
        _ => actors::worker,
    };
    world.start(role, true, life);
}

fn set_up(world: &Arc<World>, store: SimStore) {
    let params = world.inner().params.clone();
    let made = || -> Result<(), Error> {
        sealed::create(&store, &params)?;
        let session = Session::open(Arc::new(store), params.settings())?;
        (0..params.volumes)
            .try_for_each(|n| session.create_volume(&format!("v{n}"), params.volume_bytes))
    };
    if let Err(error) = made() {
        world.inner().fail(Failure::new(Checker::Unexplained, format!("setting up: {error:?}")));
    }
}
