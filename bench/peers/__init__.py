"""What eoslog is compared with: the machine's own limits, codecs, stores and servers."""
