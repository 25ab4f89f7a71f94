drop function if exists walhook_capture.{function}() cascade;
