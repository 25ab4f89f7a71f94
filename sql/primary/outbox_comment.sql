comment on function walhook_capture.{function}() is 'walhook {hash}';
