#!/usr/bin/env bash
exec "$(dirname "$0")/../experiment.sh" sciworld "$@"
