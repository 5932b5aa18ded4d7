//! `onefold status`: what a store holds, what it saved, and how it is doing.

mod archive;
mod block;
pub(in crate::verbs) mod cluster;
mod replay;

pub(in crate::verbs) use self::archive::Stats;

use self::archive::Limits;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use onefold_core::Result;
use serde_json::json;

use super::{
    Found,
    keeping::{file::PolicyFile, period::period},
    served_or_not,
};
use crate::report::Report;
use onefold::parts::{control::Request, store_file::StoreFile};
use onefold_console::{failure::Failure, output, size::Size};

/// Shows what a store holds, what it saved, and how it is doing
///
/// The store may be served meanwhile.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold status disk.onefold\n  onefold status disk.onefold --json\n  \
                  onefold status backups --check --max-age 26h --max-gc-age 8d \
                  --max-scrub-age 40d"
)]
pub(crate) struct Options {
    /// The store, of any engine
    store: PathBuf,

    /// Memory for an archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// For monitoring: says only what needs an operator, and exits with 1 when something does. Of all
    /// engines: too little free space (see --min-free). Of a block store: writes that stopped, a witness
    /// that has not known the newest state for two minutes, a snapshot that was not received to its end
    /// for two days. Of an archive: a server that takes no more writes, nodes that do not count, a chunk
    /// index that is lost or not where it should be, damaged chunks, sets without a recent snapshot or
    /// that shrank, sets from which a policy would take too much, an overdue gc or scrub. Of a store of
    /// the cluster engine: damaged objects, data that no worker deduplicates, servers and workers that
    /// say nothing
    #[arg(long)]
    check: bool,

    /// Reads every map and looks at every chunk of a store of the cluster engine. Without it the maps of
    /// about 4,000 objects are read where there are more, and the figures tell how far from the truth they
    /// may be
    #[arg(long, conflicts_with = "check")]
    exact: bool,

    /// With --check: how much of a block store, of the cluster below a store of the cluster engine, or of
    /// each file system on which an archive lies must be free, like 20G [default: a fiftieth of it, and
    /// 12 MiB for an archive]
    #[arg(long, requires = "check", value_name = "SIZE")]
    min_free: Option<Size>,

    /// With --check: how old the newest whole snapshot of each set of an archive may be, like 26h
    #[arg(long, requires = "check", value_name = "TIME", value_parser = period)]
    max_age: Option<Duration>,

    /// With --check: how long ago a gc of an archive may have gone through to its end, like 8d
    #[arg(long, requires = "check", value_name = "TIME", value_parser = period)]
    max_gc_age: Option<Duration>,

    /// With --check: how long ago all data of an archive may have been read by scrubs, like 40d
    #[arg(long, requires = "check", value_name = "TIME", value_parser = period)]
    max_scrub_age: Option<Duration>,

    /// With --check: policies of an archive for `forget`; sets from which they would take too much
    /// need an operator. Those of `serve --maintenance` are known from the server
    #[arg(long, requires = "check", value_name = "FILE")]
    policy: Option<PathBuf>,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

impl Options {
    fn limits(&self) -> Limits {
        let seconds = |age: Option<Duration>| age.map(|age| age.as_secs());
        Limits {
            snapshot: seconds(self.max_age),
            gc: seconds(self.max_gc_age),
            scrub: seconds(self.max_scrub_age),
            free: self.min_free.map(|size| size.0),
        }
    }
}

/// Says what needs an operator.
fn judge(json: bool, problems: &[String]) -> Result<(), Failure> {
    if json {
        output::json(&json!({ "problems": problems }))?;
    } else {
        problems.iter().for_each(output::line);
    }
    match problems.len() {
        0 if json => Ok(()),
        0 => {
            output::line("nothing needs you");
            Ok(())
        }
        n => Err(Failure::new(format!("{} an operator", needs(n)))),
    }
}

fn needs(n: usize) -> String {
    if n == 1 { "1 thing needs".to_owned() } else { format!("{n} things need") }
}

/// Prints the report.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let file = match Found::at(&options.store)? {
        Found::Block(file) => file,
        Found::Archive(directory) => {
            let memory = options.memory.0;
            return match options.check {
                true => {
                    let policies = options.policy.as_deref().map(PolicyFile::read).transpose()?;
                    let (limits, policies) = (options.limits(), policies.as_ref());
                    let all = archive::problems(&directory, memory, limits, policies)?;
                    judge(options.json, &all)
                }
                false => archive::show(&directory, memory, options.json),
            };
        }
        Found::Cluster(url) if options.check => {
            let min_free = options.min_free.map(|size| size.0);
            return judge(options.json, &cluster::needs_operator(&url, min_free)?);
        }
        Found::Cluster(url) => return cluster::show(&url, options.exact, options.json),
    };
    let report =
        served_or_not(&file, |server| server.ask(&Request::Status), || offline(&options.store))?;
    if options.check {
        let min_free = options.min_free.map(|size| size.0);
        return judge(options.json, &block::problems(&report, min_free));
    }
    if options.json {
        output::json(&report)?;
    } else {
        output::line(report.to_string().trim_end());
    }
    Ok(())
}

/// The report of a store that nobody serves. Nothing on the disk changes.
fn offline(path: &Path) -> Result<Report> {
    // Looked at again: a server that just stopped changed it.
    let file = StoreFile::look(path)?;
    let engine = file.open_unchanged()?;
    let clean = StoreFile::look(path)?.superblock().state.clean;
    Ok(Report { clean: Some(clean), ..Report::new(&file, &engine, &engine.status()) })
}
