"""The peers of eoslog: the machine's own limits, codecs, stores and servers."""
