//! The simulator's command; see `onefold-sim --help`.

use std::process::ExitCode;

use onefold_sim::{
    archive::Archive,
    block::{Block, engine::Thin},
    bucket::Bucket,
    cluster::Cluster,
    copies::Copies,
    front::run,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|argument| argument == "archive").is_some() {
        return run(Archive, arguments);
    }
    if arguments.next_if(|argument| argument == "bucket").is_some() {
        return run(Bucket, arguments);
    }
    if arguments.next_if(|argument| argument == "copies").is_some() {
        return run(Copies, arguments);
    }
    if arguments.next_if(|argument| argument == "cluster").is_some() {
        return run(Cluster, arguments);
    }
    run(Block::<Thin>::default(), arguments)
}
