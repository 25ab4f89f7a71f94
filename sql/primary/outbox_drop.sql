drop schema if exists walhook_capture cascade;
