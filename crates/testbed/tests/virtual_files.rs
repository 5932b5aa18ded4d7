//! The virtual files keep the contract of `Files`, as a whole and as the directories of nodes.

use onefold_testbed::{
    Rng, VirtualFiles, contract,
    files::{Layout, Mount},
};

#[test]
fn the_contract_of_files_holds() {
    let files = VirtualFiles::new(Layout::default(), Rng::new(1));
    contract::files::hold(&files);
    contract::files::hold(&Mount::new(&files, "node"));
}
