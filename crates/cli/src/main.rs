//! `onefold`: makes, serves, checks and measures stores of deduplicated blocks.
//!
//! | module | what it is for |
//! |---|---|
//! | [`arguments`], [`configuration`] | what was asked for, on the command line and in a file |
//! | [`foreign`] | words of other tools, answered with ours |
//! | [`verbs`] | one file for each verb |
//! | [`key`] | where the keys of encrypted stores are |
//! | [`operator`] | what the operator says for the whole command, and warnings |
//! | [`onefold::parts`] | finding and opening stores, and reaching those that are served |
//! | [`report`] | what `status` tells, as JSON and as text |
//!
//! How it speaks to people is in `onefold-console`.
//!
//! *Invariants:* a verb that fails says one sentence on standard error, and the exit status is 1; a
//! wrong command line is 2; 3 is a tree that was stored or restored but for what could not be read.
//! Nobody's closed pipe is a panic.

mod arguments;
mod configuration;
mod foreign;
mod key;
mod operator;
mod report;
mod verbs;

use std::{ffi::OsString, panic, process::ExitCode};

use clap::CommandFactory;

use onefold_console::{completions, failure::Failure, logging, manual, output};

use arguments::{Arguments, Verb};
use verbs::{
    accept, audit, backup, cat, check, copy, create, diff, domain, estimate, find, forget, gc, get,
    grow, image, index, inspect, key as keys, ls, mount, mv, node, put, repair, replicate, restore,
    rm, scrub, serve, snapshot, snapshots, status, tls, upgrade, volume, worker,
};

fn main() -> ExitCode {
    if onefold_backend::sparse::is_done() {
        return ExitCode::SUCCESS;
    }
    quiet_guarded_panics();
    onefold_backend::signals::survive_file_limits();
    onefold_console::end("onefold", run())
}

/// Panics that become an error with a sentence of its own are not printed.
fn quiet_guarded_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !onefold_backend::embedded::is_guarded() {
            usual(info);
        }
    }));
}

fn run() -> Result<(), Failure> {
    let arguments = configuration::read(as_option(std::env::args_os().collect()))?;
    let done = perform(arguments);
    // Locks on other hosts have ended then, too, and others may change what lies in object stores.
    onefold::parts::away::end();
    done
}

/// `onefold help VERB` is `onefold VERB --help`.
fn as_option(mut typed: Vec<OsString>) -> Vec<OsString> {
    if typed.get(1).is_some_and(|word| word == "help") {
        typed.remove(1);
        typed.push("--help".into());
    }
    typed
}

/// Does what was asked for.
fn perform(arguments: Arguments) -> Result<(), Failure> {
    // The service manager's variables are taken while there is one thread, which the log does not
    // change.
    logging::start(arguments.log.as_deref())?;
    arguments.control.into_iter().for_each(onefold::parts::control::places::choose);
    operator::give(arguments.operator);
    key::give(&arguments.key)?;
    match arguments.verb {
        Verb::Create(options) => create::run(&options),
        Verb::Volume(options) => volume::run(options),
        Verb::Snapshot(options) => snapshot::run(options),
        Verb::Grow(options) => grow::run(options),
        Verb::Export(options) => image::export(&options),
        Verb::Import(options) => image::import(options),
        Verb::Send(options) => replicate::send(&options),
        Verb::Receive(options) => replicate::receive(options),
        Verb::Serve(options) => serve::run(&options),
        Verb::Status(options) => status::run(&options),
        Verb::Check(options) => check::run(&options),
        Verb::Scrub(options) => scrub::run(&options),
        Verb::Inspect(options) => inspect::run(&options),
        Verb::Estimate(options) => estimate::run(&options),
        Verb::Repair(options) => repair::run(&options),
        Verb::Backup(options) => backup::run(&options),
        Verb::Copy(options) => copy::run(&options),
        Verb::Snapshots(options) => snapshots::run(&options),
        Verb::Restore(options) => restore::run(&options),
        Verb::Cat(options) => cat::run(&options),
        Verb::Mount(options) => mount::run(&options),
        Verb::Diff(options) => diff::run(&options),
        Verb::Find(options) => find::run(&options),
        Verb::Forget(options) => forget::run(&options),
        Verb::Undelete(options) => forget::undelete(&options),
        Verb::Put(options) => put::run(&options),
        Verb::Get(options) => get::run(&options),
        Verb::Ls(options) => ls::run(&options),
        Verb::Rm(options) => rm::run(&options),
        Verb::Mv(options) => mv::run(&options),
        Verb::Gc(options) => gc::run(&options),
        Verb::Worker(options) => worker::run(&options),
        Verb::Node(options) => node::run(&options),
        Verb::Index(options) => index::run(&options),
        Verb::Accept(options) => accept::run(&options),
        Verb::Audit(options) => audit::run(&options),
        Verb::Upgrade(options) => upgrade::run(&options),
        Verb::Key(options) => keys::run(&options),
        Verb::Domain(options) => domain::run(&options),
        Verb::Tls(options) => tls::run(&options),
        Verb::Completions(options) => completions::run(&options, Arguments::command()),
        Verb::Man(options) => manual::run(&options, Arguments::command()),
        Verb::Metrics => {
            output::line(report::reference::page().trim_end());
            Ok(())
        }
    }
}
