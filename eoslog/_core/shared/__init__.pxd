# State that processes share: control file, group commit.
